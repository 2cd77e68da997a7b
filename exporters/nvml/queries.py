"""What is asked of one GPU, and how. Runs in the helper process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from exporters.nvml.asking import ALL_LINKS, NO_SCOPE, Asker
from exporters.nvml.reading import MAX_MIG_INSTANCES, MAX_PROCESSES, MAX_TEXT, Fabric, MigInstance

RENUMBERED_DRIVER = 590
"""From this major version on, fields beyond 250 have the numbers that the binding knows them by. Before, the same
numbers meant other things: 251 was a clocks event counter in 575 and 580, and a power setting in 570."""


def _memory(handle: Any) -> tuple[int, ...]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return memory.total, memory.used, memory.reserved


def _memory_before_510(handle: Any) -> tuple[int, ...]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used


def _utilization(handle: Any) -> tuple[int, ...]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _one(function: Callable[..., int], *arguments: int) -> Callable[[Any], tuple[int, ...]]:
    return lambda handle: (function(handle, *arguments),)


_CALLS: tuple[tuple[tuple[str, ...], tuple[Callable[[Any], tuple[int, ...]], ...]], ...] = (
    (("gpu_utilization_percent", "memory_utilization_percent"), (_utilization,)),
    (
        ("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"),
        (_memory, _memory_before_510),
    ),
    (("power_milliwatts",), (_one(pynvml.nvmlDeviceGetPowerUsage),)),
    (("power_limit_milliwatts",), (_one(pynvml.nvmlDeviceGetEnforcedPowerLimit),)),
    (
        ("temperature_celsius",),
        (
            _one(pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU),
            _one(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        ),
    ),
    (
        ("slowdown_celsius",),
        (_one(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),),
    ),
    (
        ("shutdown_celsius",),
        (_one(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),),
    ),
    (
        ("memory_max_celsius",),
        (_one(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),),
    ),
    (("sm_clock_megahertz",), (_one(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),)),
    (("memory_clock_megahertz",), (_one(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),)),
    (("sm_clock_max_megahertz",), (_one(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),)),
    (("memory_clock_max_megahertz",), (_one(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),)),
    (
        ("rows_remapped_corrected", "rows_remapped_uncorrected", "row_remap_pending", "row_remap_failed"),
        (pynvml.nvmlDeviceGetRemappedRows,),
    ),
    (("pcie_generation",), (_one(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),)),
    (("pcie_max_generation",), (_one(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),)),
    (("pcie_width",), (_one(pynvml.nvmlDeviceGetCurrPcieLinkWidth),)),
    (("pcie_max_width",), (_one(pynvml.nvmlDeviceGetMaxPcieLinkWidth),)),
    (("pcie_replays",), (_one(pynvml.nvmlDeviceGetPcieReplayCounter),)),
)
_PCIE_THROUGHPUT = (
    (
        ("pcie_transmit_kilobytes_per_second",),
        (_one(pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_TX_BYTES),),
    ),
    (
        ("pcie_receive_kilobytes_per_second",),
        (_one(pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_RX_BYTES),),
    ),
)
_FIELDS = {
    "ecc_corrected_volatile": (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NO_SCOPE),
    "ecc_uncorrected_volatile": (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NO_SCOPE),
    "ecc_corrected_aggregate": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, NO_SCOPE),
    "ecc_uncorrected_aggregate": (pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL, NO_SCOPE),
    "pages_retired_single_bit": (pynvml.NVML_FI_DEV_RETIRED_SBE, NO_SCOPE),
    "pages_retired_double_bit": (pynvml.NVML_FI_DEV_RETIRED_DBE, NO_SCOPE),
    "page_retirement_pending": (pynvml.NVML_FI_DEV_RETIRED_PENDING, NO_SCOPE),
    "memory_temperature_celsius": (pynvml.NVML_FI_DEV_MEMORY_TEMP, NO_SCOPE),
    "energy_millijoules": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NO_SCOPE),
    "recovery_action": (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NO_SCOPE),
    "nvlink_links": (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, NO_SCOPE),
    "nvlink_transmit_kibibytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
    "nvlink_receive_kibibytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
}
_REASON_FIELDS = {
    "sw_power_cap": (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, NO_SCOPE),
    "sync_boost": (pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, NO_SCOPE),
    "sw_thermal_slowdown": (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, NO_SCOPE),
}
_RENUMBERED_REASON_FIELDS = {
    "hw_thermal_slowdown": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, NO_SCOPE),
    "hw_power_brake_slowdown": (pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, NO_SCOPE),
}


def values(asker: Asker, handle: Any, *, pcie_throughput: bool) -> dict[str, int]:
    """All plain numbers, by the names above; GpuGone when there is no GPU."""
    found: dict[str, int] = {}
    for names, functions in (*_CALLS, *(_PCIE_THROUGHPUT if pcie_throughput else ())):
        numbers = asker.ask_first(functions, handle)
        if numbers is not None:
            found.update(zip(names, numbers, strict=False))  # the older way to ask for memory tells less
    found.update(_known(_FIELDS, asker.fields(handle, list(_FIELDS.values()))))
    return found


def reason_nanoseconds(asker: Asker, handle: Any, driver_major: int) -> dict[str, int]:
    """How long each reason lowered the clocks since the driver was loaded, as far as this driver counts."""
    wanted = dict(_REASON_FIELDS)
    if driver_major >= RENUMBERED_DRIVER:
        wanted |= _RENUMBERED_REASON_FIELDS
    return dict(_known(wanted, asker.fields(handle, list(wanted.values()))))


def reasons(asker: Asker, handle: Any) -> tuple[int | None, int | None]:
    """The bits of what lowers the clocks now, and of what this GPU can tell."""
    current = asker.ask_first(
        (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons), handle
    )
    supported = asker.ask_first(
        (pynvml.nvmlDeviceGetSupportedClocksEventReasons, pynvml.nvmlDeviceGetSupportedClocksThrottleReasons), handle
    )
    return current, supported


def mig(asker: Asker, handle: Any) -> tuple[bool | None, list[Any], tuple[MigInstance, ...]]:
    """Whether the GPU is partitioned (None: it cannot be), and the handles and identities of its MIG devices."""
    mode = asker.ask(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return None, [], ()
    if mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return False, [], ()
    most = min(asker.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, MAX_MIG_INSTANCES)
    asked = (asker.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in range(most))
    handles = [each for each in asked if each is not None]
    return True, handles, tuple(_mig_instance(asker, each) for each in handles)


def pids(asker: Asker, handles: Iterable[Any]) -> tuple[int, ...] | None:
    """The processes that compute on any of these devices; None where unknown."""
    answers = [
        asker.ask_first(
            (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2), handle
        )
        for handle in handles
    ]
    told = [answer for answer in answers if answer is not None]
    found = sorted({process.pid for answer in told for process in answer})
    if len(found) > MAX_PROCESSES:
        asker.errors["too_many_processes"] += len(found) - MAX_PROCESSES
    return tuple(found[:MAX_PROCESSES]) if told else None


def fabric(asker: Asker, handle: Any) -> Fabric | None:
    """How the GPU joined its NVLink fabric; None where there is none to join."""
    info = asker.ask_first((_fabric_v2, _fabric_v1), handle)
    if info is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    cluster = bytes(info.clusterUuid)
    return Fabric(
        state=info.state,
        status=info.status,
        clique=info.cliqueId,
        cluster=_uuid(cluster) if any(cluster) else "",
        health=getattr(info, "healthMask", None),
    )


def text(asker: Asker, function: Callable[..., str], *arguments: Any) -> str:
    """A name or a version, empty where there is none."""
    return (asker.ask(function, *arguments) or "")[:MAX_TEXT]


def _known(names: Iterable[str], numbers: Iterable[int | None]) -> Iterable[tuple[str, int]]:
    return ((name, number) for name, number in zip(names, numbers, strict=True) if number is not None)


def _mig_instance(asker: Asker, handle: Any) -> MigInstance:
    gpu_instance = asker.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)
    compute_instance = asker.ask(pynvml.nvmlDeviceGetComputeInstanceId, handle)
    return MigInstance(
        text(asker, pynvml.nvmlDeviceGetUUID, handle),
        -1 if gpu_instance is None else gpu_instance,
        -1 if compute_instance is None else compute_instance,
    )


def _fabric_v2(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return info


def _fabric_v1(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info))
    return info


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
