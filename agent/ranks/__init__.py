"""Which processes are ranks, which rank each is, how each is, and how it ended."""
