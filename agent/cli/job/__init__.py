"""`rankwatch job`: a whole job over all its nodes, as Prometheus knows it.

``facts`` asks Prometheus; ``text`` says it, purely; ``command`` is the command line.
"""
