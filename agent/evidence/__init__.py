"""Evidence of an incident: what a node knew when a rank died or hung, as a bundle on its disk."""
