"""One rank process: its facts from /proc, its owner, its claims, its exit and its verdict."""
