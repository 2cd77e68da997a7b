"""NIXL-EP runs, from what their ranks print and from their plan: bandwidths, phases, and who leaves as planned.

Its rank server is never asked: it would take the agent for another rank.
"""

from exporters.nixl_ep.exporter import SPEC, NixlEpConfig, NixlEpExporter

__all__ = ["SPEC", "NixlEpConfig", "NixlEpExporter"]
