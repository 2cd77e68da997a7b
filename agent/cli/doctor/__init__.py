"""`rankwatch doctor`: checks an installation and prints fixes, one line each.

``facts`` asks the agent, the machine and Prometheus; ``checks`` judges, purely; ``command`` is the command line.
"""
