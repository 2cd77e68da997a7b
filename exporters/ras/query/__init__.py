"""Which job is queried, by which node and when, and what is kept of the reports."""
