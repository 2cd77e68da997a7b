"""NVIDIA's Resiliency Extension: restart cycles, launcher events, ranks that its monitors killed, and stragglers.

The exporter reads only files. It never connects to NVRx's sockets, because they take one client at a time.
"""

from exporters.nvrx.exporter import SPEC, NvrxConfig, NvrxExporter

__all__ = ["SPEC", "NvrxConfig", "NvrxExporter"]
