"""`rankwatch doctor`: what is not right with an installation, and the remedy, a line each.

``facts`` asks the agent, the machine and Prometheus; ``checks`` judges, purely; ``command`` is the command line.
"""
