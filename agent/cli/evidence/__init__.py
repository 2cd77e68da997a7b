"""`rankwatch evidence`: the bundles of this node."""
