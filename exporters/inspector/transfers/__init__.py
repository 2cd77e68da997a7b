"""How fast the fabric is without any waiting, from the times of single ranks. Pure."""
