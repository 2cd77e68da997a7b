"""RAS threads of this node and their listeners, as /proc and files show them. Blocking."""
