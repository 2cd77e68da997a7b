"""`rankwatch job`: a whole job over all its nodes; ``facts`` queries Prometheus, ``command`` prints the answer."""
