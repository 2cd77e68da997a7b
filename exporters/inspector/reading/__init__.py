"""Reads files into totals: a reader for each directory, in a thread of its own."""
