"""RDMA devices (InfiniBand, RoCE, EFA) from /sys/class/infiniband: their ports' state and rate, and every counter.

What a port was once this boot is what is expected of it: a port that was never up is no fault.
"""

from exporters.rdma.exporter import SPEC, RdmaConfig, RdmaExporter

__all__ = ["SPEC", "RdmaConfig", "RdmaExporter"]
