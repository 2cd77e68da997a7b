"""Records added up, in integers. Pure."""
