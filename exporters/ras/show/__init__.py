"""Metric families, and the part of an evidence bundle."""
