"""Totals of records, in integers. Pure."""
