"""From files to totals: a reader for each directory, in a thread of its own."""
