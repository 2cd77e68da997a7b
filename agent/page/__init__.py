"""What the agent shows of its node to people and scripts: one document, read by the page and by `rankwatch status`."""
