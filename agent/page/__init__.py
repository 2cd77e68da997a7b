"""The node's document for people and scripts. The page at `/` and `rankwatch status` show it."""
