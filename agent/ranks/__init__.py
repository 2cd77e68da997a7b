"""Ranks of this node: processes, rank numbers, states and exits."""
