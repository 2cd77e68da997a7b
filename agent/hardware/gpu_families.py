"""What GPUs of every maker have in common, as metric families: one name and meaning, whichever exporter reads it."""

from __future__ import annotations

from agent.core.metrics import Family

GPU_LABELS = ("gpu", "gpu_uuid")
_PER_GPU = "1 per GPU"


def gauge(name: str, text: str, cost: str = _PER_GPU, *labels: str) -> Family:
    """A gauge of each GPU, with further labels."""
    return Family(name, "gauge", text, (*GPU_LABELS, *labels), cost)


def counter(name: str, text: str, cost: str = _PER_GPU, *labels: str) -> Family:
    """A counter of each GPU, with further labels."""
    return Family(name, "counter", text, (*GPU_LABELS, *labels), cost)


PRESENT = gauge(
    "rankwatch_gpu_present",
    "1 while the driver reaches the GPU, 0 when it was there since boot and is lost; without gpu_uuid, lost from the "
    "start.",
)
INFO = gauge(
    "rankwatch_gpu_info",
    "Always 1: the GPU's PCI address (as sysfs writes it) and product name, also of one that is lost.",
    _PER_GPU,
    "pci",
    "name",
)
DRIVER_INFO = Family(
    "rankwatch_gpu_driver_info",
    "gauge",
    "Always 1: the version of the GPUs' driver (empty if it is the kernel's own), the latest CUDA that NVIDIA's driver "
    "runs, and the ROCm that is installed beside AMD's.",
    ("driver", "cuda", "rocm"),
    "1 per node",
)
PROCESSES = gauge("rankwatch_gpu_processes", "Processes that compute on the GPU, or on a part of it.")
UTILIZATION = gauge(
    "rankwatch_gpu_utilization_ratio",
    "Share of the driver's last sample period (up to a second) in which a kernel ran on the GPU.",
)
SM_ACTIVE = gauge(
    "rankwatch_gpu_sm_active_ratio",
    "Share of the compute units (streaming multiprocessors) that were busy, mean of the time between the last two "
    "looks; of NVIDIA's GPUs from Hopper on without MIG.",
    "1 per GPU that tells",
)
TENSOR_ACTIVE = gauge(
    "rankwatch_gpu_tensor_active_ratio",
    "Share of the time between the last two looks in which the compute units did tensor operations, their mean; of "
    "NVIDIA's GPUs from Hopper on without MIG.",
    "1 per GPU that tells",
)
DRAM_ACTIVE = gauge(
    "rankwatch_gpu_dram_active_ratio",
    "Share of the memory's bandwidth that was used, mean of the time between the last two looks; of NVIDIA's GPUs from "
    "Hopper on without MIG, of AMD's whose table is of version 1.6 or later.",
    "1 per GPU that tells",
)
MEMORY = gauge("rankwatch_gpu_memory_bytes", "Memory of the GPU in all.")
MEMORY_USED = gauge(
    "rankwatch_gpu_memory_used_bytes",
    "Memory of the GPU that is allocated; before NVIDIA's driver 510 with what the driver reserves.",
)
CLOCKS_SECONDS = counter(
    "rankwatch_gpu_clocks_event_seconds_total",
    "How long the reason lowered the GPU's clocks: the driver's count where it has one, else estimated from each look. "
    "AMD's also have hw_thermal_slowdown_vr and hw_thermal_slowdown_hbm (voltage regulators, memory). NVIDIA's have "
    "settings (applications_clocks_setting, sync_boost, display_clock_setting) once they held.",
    "5 to 8 per GPU",
    "reason",
)
POWER = gauge("rankwatch_gpu_power_watts", "Power that the GPU draws, with its memory.")
POWER_LIMIT = gauge("rankwatch_gpu_power_limit_watts", "Power that the GPU may draw before it lowers its clocks.")
TEMPERATURE = gauge(
    "rankwatch_gpu_temperature_celsius", "Temperature of the GPU's core (of AMD's the hottest spot of it)."
)
MEMORY_TEMPERATURE = gauge("rankwatch_gpu_memory_temperature_celsius", "Temperature of the GPU's memory.")
SM_CLOCK = gauge("rankwatch_gpu_sm_clock_hertz", "Clock of the compute units (streaming multiprocessors).")
ECC_ERRORS = counter(
    "rankwatch_gpu_ecc_errors_total",
    "Memory errors since the driver was loaded (lifetime volatile), by type: corrected or uncorrected.",
    "2 per GPU",
    "type",
    "lifetime",
)
PCIE_REPLAYS = counter(
    "rankwatch_gpu_pcie_replays_total", "PCIe packets that had to be sent again since the driver was loaded."
)
