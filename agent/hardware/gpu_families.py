"""Metric families for GPUs of every maker: each name has the same meaning in every exporter."""

from agent.core.metrics import Family

GPU_LABELS = ("gpu", "gpu_uuid")
_PER_GPU = "1 per GPU"


def gauge(name: str, text: str, cost: str = _PER_GPU, *labels: str) -> Family:
    """Return a gauge family with the GPU's labels and further ``labels``."""
    return Family(name, "gauge", text, (*GPU_LABELS, *labels), cost)


def counter(name: str, text: str, cost: str = _PER_GPU, *labels: str) -> Family:
    """Return a counter family with the GPU's labels and further ``labels``."""
    return Family(name, "counter", text, (*GPU_LABELS, *labels), cost)


# fmt: off
PRESENT = gauge("rankwatch_gpu_present",
    "1 while the driver reaches the GPU, 0 while a GPU that was present since the boot is lost. gpu_uuid is empty for "
    "a GPU that was lost before its UUID was read.")
INFO = gauge("rankwatch_gpu_info",
    "Always 1: the GPU's PCI address (as sysfs writes it) and product name. A lost GPU keeps its series.",
    _PER_GPU, "pci", "name")
DRIVER_INFO = Family("rankwatch_gpu_driver_info", "gauge",
    "Always 1: the version of the GPU driver (empty if it is the kernel's own), the latest CUDA version that NVIDIA's "
    "driver runs, and the installed ROCm version on nodes with AMD GPUs.",
    ("driver", "cuda", "rocm"), "1 per node")
PROCESSES = gauge("rankwatch_gpu_processes", "Processes that compute on the GPU or on a part of it.")
UTILIZATION = gauge(
    "rankwatch_gpu_utilization_ratio",
    "Share of the driver's last sample period (at most 1 s) in which a kernel ran on the GPU.",
)
ACTIVE = gauge("rankwatch_gpu_active_ratio",
    "Mean between the agent's last two reads, by unit. sm: share of busy compute units (streaming multiprocessors); "
    "tensor: share of the time in which they did tensor operations; dram: used share of the memory bandwidth. NVIDIA "
    "GPUs from Hopper on, without MIG; dram also of AMD GPUs with a gpu_metrics table of version 1.6 or later.",
    "up to 3 per GPU that reports it", "unit")
MEMORY = gauge("rankwatch_gpu_memory_bytes", "Total memory of the GPU.")
MEMORY_USED = gauge(
    "rankwatch_gpu_memory_used_bytes",
    "Allocated memory of the GPU. NVIDIA drivers before 510 include the memory that the driver reserves.",
)
CLOCKS_SECONDS = counter("rankwatch_gpu_clocks_event_seconds_total",
    "How long the reason lowered the GPU's clocks: the driver's own count, else an estimate from the agent's reads. "
    "AMD GPUs also have hw_thermal_slowdown_vr (voltage regulators) and hw_thermal_slowdown_hbm (memory). NVIDIA GPUs "
    "have the settings applications_clocks_setting, sync_boost and display_clock_setting after they were active once.",
    "5 to 8 per GPU", "reason")
POWER = gauge("rankwatch_gpu_power_watts", "Power that the GPU and its memory draw.")
POWER_LIMIT = gauge("rankwatch_gpu_power_limit_watts", "Power that the GPU may draw before it lowers its clocks.")
TEMPERATURE = gauge("rankwatch_gpu_temperature_celsius",
    "Temperature of a part of the GPU: core (AMD: its hottest spot) or memory.",
    "1 to 2 per GPU", "part")
SM_CLOCK = gauge("rankwatch_gpu_sm_clock_hertz", "Clock of the compute units (streaming multiprocessors).")
ECC_ERRORS = counter("rankwatch_gpu_ecc_errors_total",
    "Memory errors since the driver was loaded (label lifetime: volatile), by type: corrected or uncorrected.",
    "2 per GPU", "type", "lifetime")
PCIE_REPLAYS = counter("rankwatch_gpu_pcie_replays_total",
    "PCIe packets that were sent again since the driver was loaded.")
# fmt: on
