"""Which job is asked, by which node, when, and what is made of the answer."""
