"""The interface of exporters, and the rendering of their state as the text of a scrape."""
