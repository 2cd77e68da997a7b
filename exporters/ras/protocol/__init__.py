"""The conversation with a RAS thread."""
