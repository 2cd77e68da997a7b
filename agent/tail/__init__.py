"""Growing files that others write, line by line."""
