"""`rankwatch doctor`: ``facts`` queries the agent, the machine and Prometheus; ``command`` judges and prints fixes."""
