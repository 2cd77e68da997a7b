"""The node's document for people and scripts, shown by the page at `/` and by `rankwatch status`."""
