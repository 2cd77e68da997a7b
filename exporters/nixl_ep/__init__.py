"""NIXL-EP runs, read from rank output and the plan: bandwidths, phases, and ranks that leave as planned.

The exporter never connects to NIXL-EP's rank server, because the server would register the agent as a rank.
"""

from exporters.nixl_ep.exporter import SPEC, NixlEpConfig, NixlEpExporter

__all__ = ["SPEC", "NixlEpConfig", "NixlEpExporter"]
