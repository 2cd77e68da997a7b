"""The kernel's log, /dev/kmsg: lines about GPUs, NICs, PCIe, memory, file systems and killed ranks, by category.

categories.yml defines the categories. Each record is counted once, even across restarts of the agent.
"""

from exporters.kernel_log.exporter import SPEC, KernelLogConfig, KernelLogExporter

__all__ = ["SPEC", "KernelLogConfig", "KernelLogExporter"]
