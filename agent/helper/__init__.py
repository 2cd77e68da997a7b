"""Helper processes, for calls that can hang or take memory without bound."""
