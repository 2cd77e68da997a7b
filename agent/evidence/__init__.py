"""Evidence of an incident: the state of a node when a rank died or hung, in a bundle on its disk."""
