"""AMD GPUs from sysfs, as the kernel's driver amdgpu shows them; ROCm is not needed.

A GPU that was there since the boot and is not any more is lost, and stays so until it is back.
"""

from exporters.amdgpu.exporter import SPEC, AmdgpuConfig, AmdgpuExporter

__all__ = ["SPEC", "AmdgpuConfig", "AmdgpuExporter"]
