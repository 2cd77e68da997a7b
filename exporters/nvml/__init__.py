"""NVIDIA GPUs, read from their driver through NVML: state, errors, Xids, NVLinks, and the processes on each GPU.

An NVML call can hang in the driver. Therefore only a helper process loads and calls NVML.
"""

from exporters.nvml.exporter import SPEC, NvmlConfig, NvmlExporter

__all__ = ["SPEC", "NvmlConfig", "NvmlExporter"]
