"""Network devices with their own hardware: errors, carrier changes and pause frames.

Bridges, tunnels and the veth devices of pods are left out: there are hundreds, they change often, and they have no
hardware that can fail.
"""

from exporters.netdev.exporter import SPEC, NetdevConfig, NetdevExporter

__all__ = ["SPEC", "NetdevConfig", "NetdevExporter"]
