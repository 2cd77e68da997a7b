"""HTTP: the server, its pages, and where it listens."""
