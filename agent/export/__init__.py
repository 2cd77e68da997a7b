"""From the state of sources to the text of a scrape."""
