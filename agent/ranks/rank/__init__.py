"""One rank: what is read of its process, whose it is, what it says it is, and how it is judged."""
