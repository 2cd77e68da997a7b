"""Ranks of this node: their processes, their numbers, their states and their exits."""
