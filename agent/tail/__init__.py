"""Read growing files of other programs, line by line."""
