"""Assign job ids and rank numbers to processes, also if several claim the same or share one environment."""
