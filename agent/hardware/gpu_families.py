"""What GPUs of every maker have in common, as metric families: one name and meaning, whichever exporter reads it."""

from __future__ import annotations

from agent.core.metrics import Family

GPU_LABELS = ("gpu", "gpu_uuid")
_PER_GPU = "1 per GPU"
_IF_ASKED = "1 per GPU, only with all_values"


def gauge(name: str, text: str, cost: str = _PER_GPU) -> Family:
    """A gauge of each GPU."""
    return Family(name, "gauge", text, GPU_LABELS, cost)


def detail(name: str, text: str) -> Family:
    """A gauge of each GPU that has series only where the configuration asks for all_values."""
    return gauge(name, text, _IF_ASKED)


PRESENT = Family(
    "rankwatch_gpu_present",
    "gauge",
    "1 while the driver reaches the GPU, 0 when it was there since boot and is lost; without gpu_uuid, lost from the "
    "start.",
    GPU_LABELS,
    _PER_GPU,
)
INFO = Family(
    "rankwatch_gpu_info",
    "gauge",
    "Always 1: the GPU's PCI address (as sysfs writes it) and product name, also of one that is lost.",
    (*GPU_LABELS, "pci", "name"),
    _PER_GPU,
)
DRIVER_INFO = Family(
    "rankwatch_gpu_driver_info",
    "gauge",
    "Always 1: the version of the GPUs' driver, and of NVIDIA's the latest CUDA that it runs. AMD's has one where it "
    "is not the kernel's own.",
    ("driver", "cuda"),
    "1 per node",
)
PROCESSES = gauge("rankwatch_gpu_processes", "Processes that compute on the GPU, or on a part of it.")
UTILIZATION = gauge(
    "rankwatch_gpu_utilization_ratio",
    "Share of the driver's last sample period (up to a second) in which a kernel ran on the GPU.",
)
MEMORY_UTILIZATION = detail(
    "rankwatch_gpu_memory_utilization_ratio",
    "Share of the driver's last sample period (up to a second) in which the GPU's memory was read or written.",
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
ENERGY = Family(
    "rankwatch_gpu_energy_joules_total",
    "counter",
    "Energy that the GPU has used since the driver was loaded.",
    GPU_LABELS,
    _IF_ASKED,
)
CLOCKS_SECONDS = Family(
    "rankwatch_gpu_clocks_event_seconds_total",
    "counter",
    "How long the reason lowered the GPU's clocks: the driver's count where it has one, else estimated from each look. "
    "AMD's also have hw_thermal_slowdown_vr and hw_thermal_slowdown_hbm (voltage regulators, memory). NVIDIA's have "
    "gpu_idle only with all_values, and settings (applications_clocks_setting, sync_boost, display_clock_setting) once "
    "they held.",
    (*GPU_LABELS, "reason"),
    "5 to 8 per GPU, 9 with all_values",
)
POWER = gauge("rankwatch_gpu_power_watts", "Power that the GPU draws, with its memory.")
POWER_LIMIT = gauge("rankwatch_gpu_power_limit_watts", "Power that the GPU may draw before it lowers its clocks.")
TEMPERATURE = gauge(
    "rankwatch_gpu_temperature_celsius", "Temperature of the GPU's core (of AMD's the hottest spot of it)."
)
MEMORY_TEMPERATURE = gauge("rankwatch_gpu_memory_temperature_celsius", "Temperature of the GPU's memory.")
TEMPERATURE_SHUTDOWN = detail(
    "rankwatch_gpu_temperature_shutdown_celsius", "Temperature of the core at which the GPU shuts down."
)
TEMPERATURE_SLOWDOWN = detail(
    "rankwatch_gpu_temperature_slowdown_celsius", "Temperature of the core at which the hardware lowers the clocks."
)
SM_CLOCK = gauge("rankwatch_gpu_sm_clock_hertz", "Clock of the compute units (streaming multiprocessors).")
MEMORY_CLOCK = detail("rankwatch_gpu_memory_clock_hertz", "Clock of the memory.")
ECC_ERRORS = Family(
    "rankwatch_gpu_ecc_errors_total",
    "counter",
    "Memory errors by type (corrected or uncorrected) and lifetime: volatile counts since the driver was loaded, "
    "aggregate over the GPU's life (only with all_values).",
    (*GPU_LABELS, "type", "lifetime"),
    "2 per GPU, up to 4 with all_values",
)
PCIE_GENERATION = detail(
    "rankwatch_gpu_pcie_link_generation", "PCIe generation that the GPU's link runs at; falls when the GPU is idle."
)
PCIE_GENERATION_MAX = detail(
    "rankwatch_gpu_pcie_link_generation_max", "Highest PCIe generation of the GPU in this slot."
)
PCIE_WIDTH = detail("rankwatch_gpu_pcie_link_width", "Lanes that the GPU's PCIe link runs with.")
PCIE_WIDTH_MAX = detail("rankwatch_gpu_pcie_link_width_max", "Most PCIe lanes of the GPU in this slot.")
PCIE_REPLAYS = Family(
    "rankwatch_gpu_pcie_replays_total",
    "counter",
    "PCIe packets that had to be sent again since the driver was loaded.",
    GPU_LABELS,
    _PER_GPU,
)

DETAILS = frozenset(
    {
        MEMORY_UTILIZATION,
        ENERGY,
        TEMPERATURE_SHUTDOWN,
        TEMPERATURE_SLOWDOWN,
        MEMORY_CLOCK,
        PCIE_GENERATION,
        PCIE_GENERATION_MAX,
        PCIE_WIDTH,
        PCIE_WIDTH_MAX,
    }
)
"""What neither rules nor dashboards ask for, as checks judge it or it never changes: only with all_values."""
