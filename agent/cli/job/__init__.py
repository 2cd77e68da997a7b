"""`rankwatch job`: a whole job over all its nodes; ``facts`` asks Prometheus, ``command`` says it."""
