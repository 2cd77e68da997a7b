"""Helper processes for calls that may hang or need unbounded memory."""
