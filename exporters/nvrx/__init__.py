"""NVIDIA's Resiliency Extension: restart cycles, its launchers' events, ranks that its monitors killed, stragglers.

Read from its files alone: nothing connects to its sockets, which take one client at a time.
"""

from exporters.nvrx.exporter import SPEC, NvrxConfig, NvrxExporter

__all__ = ["SPEC", "NvrxConfig", "NvrxExporter"]
