"""The hardware of this node: what there is, and what is wrong with it."""
