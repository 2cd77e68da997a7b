"""The format of Inspector's lines. Pure."""
