"""Evidence of an incident: a node's knowledge when a rank died or hung, in a bundle on its disk."""
