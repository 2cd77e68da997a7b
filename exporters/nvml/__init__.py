"""NVIDIA's GPUs by their driver (NVML): state, errors, Xids, NVLinks, and which process uses which.

NVML can hang in the driver, so it is loaded and called in a helper process alone.
"""

from exporters.nvml.exporter import SPEC, NvmlConfig, NvmlExporter

__all__ = ["SPEC", "NvmlConfig", "NvmlExporter"]
