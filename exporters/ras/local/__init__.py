"""What this node knows of its RAS threads, from /proc and files alone. Blocking."""
