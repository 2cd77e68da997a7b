"""How fast the fabric is where nobody is waited for, from the times of single ranks. Pure."""
