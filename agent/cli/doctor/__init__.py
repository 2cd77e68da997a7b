"""`rankwatch doctor`: ``facts`` asks the agent, the machine and Prometheus; ``command`` judges and prints fixes."""
