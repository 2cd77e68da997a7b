"""The kernel's log, /dev/kmsg: what it says of GPUs, NICs, PCIe, memory, file systems and killed ranks, by category.

What counts as what is in categories.yml. Each record is counted once, over restarts of the agent too.
"""

from exporters.kernel_log.exporter import SPEC, KernelLogConfig, KernelLogExporter

__all__ = ["SPEC", "KernelLogConfig", "KernelLogExporter"]
