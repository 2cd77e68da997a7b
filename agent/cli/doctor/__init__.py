"""`rankwatch doctor`: ``facts`` queries the agent, the machine and Prometheus; ``checks`` judges and prints fixes."""
