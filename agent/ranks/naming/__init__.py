"""Assign job ids and rank numbers to processes, even if several claim the same rank or share one environment."""
