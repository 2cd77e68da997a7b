"""Network devices with hardware behind them: state, errors, carrier changes, pause frames; speed and traffic.

Bridges, tunnels and the ends of pods' cables are not among them: they come and go by the hundred and break nothing.
"""

from exporters.netdev.exporter import SPEC, NetdevConfig, NetdevExporter

__all__ = ["SPEC", "NetdevConfig", "NetdevExporter"]
