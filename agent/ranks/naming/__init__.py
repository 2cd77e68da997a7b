"""Assign job ids and rank numbers to processes, even if processes claim the same rank or share one environment."""
