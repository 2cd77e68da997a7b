"""Network devices with hardware behind them: errors, carrier changes and pause frames.

Bridges, tunnels and pods' veth devices are left out: they come and go by the hundred, and none can break.
"""

from exporters.netdev.exporter import SPEC, NetdevConfig, NetdevExporter

__all__ = ["SPEC", "NetdevConfig", "NetdevExporter"]
