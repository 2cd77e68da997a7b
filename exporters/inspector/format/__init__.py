"""What Inspector's lines mean. Pure."""
