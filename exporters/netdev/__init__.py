"""Network devices with their own hardware: errors, carrier changes and pause frames.

Bridges, tunnels and the veth devices of pods are left out: there are hundreds, and no hardware can fail.
"""

from exporters.netdev.exporter import SPEC, NetdevConfig, NetdevExporter

__all__ = ["SPEC", "NetdevConfig", "NetdevExporter"]
