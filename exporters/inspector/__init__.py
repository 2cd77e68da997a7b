"""NCCL and RCCL Inspector: bandwidth per rank and collective, from the JSON lines the profiler plugin writes."""

from exporters.inspector.exporter import SPEC

__all__ = ["SPEC"]
