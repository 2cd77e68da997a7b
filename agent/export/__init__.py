"""Exporters' interface, and the way from their state to the text of a scrape."""
