"""RDMA devices (InfiniBand, RoCE, EFA) from /sys/class/infiniband: the state, rate and counters of their ports.

A port is expected to keep the best state that it had since the boot. A port that was never up is not a fault.
"""

from exporters.rdma.exporter import SPEC, RdmaConfig, RdmaExporter

__all__ = ["SPEC", "RdmaConfig", "RdmaExporter"]
