"""AMD GPUs, read from the sysfs files of the kernel's amdgpu driver. ROCm is not needed.

A GPU that was present since the boot and is now absent counts as lost until it is back.
"""

from exporters.amdgpu.exporter import SPEC, AmdgpuConfig, AmdgpuExporter

__all__ = ["SPEC", "AmdgpuConfig", "AmdgpuExporter"]
