"""Who came last to a collective, from the times of its members. Pure."""
