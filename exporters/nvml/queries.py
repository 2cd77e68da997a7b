"""Reads one GPU: maps each value to the NVML calls that return it. Runs in the helper process.

GPU generations count errors of NVLinks in different counters. For each link and kind of error, several counters are
tried in order. From then on, the first counter that answers is read.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from uuid import UUID

import pynvml

from exporters.nvml.calls import ALL_LINKS, NO_SCOPE, NvmlCalls
from exporters.nvml.reading import MAX_MIG_INSTANCES, MAX_PROCESSES, MAX_TEXT, Fabric, Link

RENUMBERED_DRIVER = 590
"""From this major version on, fields above 250 have the numbers that pynvml uses.

In older drivers the numbers had other meanings: 251 was a clocks event counter in 575 and 580, a setting in 570.
"""
_NUMBERS: dict[str, tuple[Callable[[Any], int], ...]] = {
    "gpu_utilization_percent": (lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,),
    "power_milliwatts": (pynvml.nvmlDeviceGetPowerUsage,),
    "power_limit_milliwatts": (pynvml.nvmlDeviceGetEnforcedPowerLimit,),
    "temperature_celsius": (
        lambda handle: pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU),
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    ),
    "sm_clock_megahertz": (lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),),
    "pcie_generation": (pynvml.nvmlDeviceGetCurrPcieLinkGeneration,),
    "pcie_max_generation": (pynvml.nvmlDeviceGetMaxPcieLinkGeneration,),
    "pcie_width": (pynvml.nvmlDeviceGetCurrPcieLinkWidth,),
    "pcie_max_width": (pynvml.nvmlDeviceGetMaxPcieLinkWidth,),
    "pcie_replays": (pynvml.nvmlDeviceGetPcieReplayCounter,),
}
_FIELDS = {
    "ecc_corrected_volatile": (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NO_SCOPE),
    "ecc_uncorrected_volatile": (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NO_SCOPE),
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
ErrorKind = Literal["replay", "recovery", "crc", "receive", "phy_retry"]
_Field = tuple[int, int]
_LANE_FIELDS: dict[ErrorKind, str] = {
    "replay": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L{}",
    "recovery": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L{}",
    "crc": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L{}",
}
"""GPUs up to Ampere: one field for each of the first twelve links."""
_LINK_FIELDS: dict[ErrorKind, tuple[int, ...]] = {
    "replay": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,),
    "recovery": (pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY),
    "crc": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,),
    "receive": (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,),
    "phy_retry": (pynvml.NVML_FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS,),
}
"""Later GPUs: one field with the link as its scope. The newest field is first."""


def _memory(handle: Any) -> tuple[int, ...]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    return memory.total, memory.used


def _memory_before_510(handle: Any) -> tuple[int, ...]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used


def _remapping(handle: Any) -> tuple[int, ...]:
    _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return pending, failed


_CALLS: tuple[tuple[tuple[str, ...], tuple[Callable[[Any], tuple[int, ...]], ...]], ...] = (
    (("memory_total_bytes", "memory_used_bytes"), (_memory, _memory_before_510)),
    (("row_remap_pending", "row_remap_failed"), (_remapping,)),
)
"""Calls that return several numbers: the names of the numbers, and the functions, the preferred function first."""


def values(calls: NvmlCalls, handle: Any) -> dict[str, int]:
    """Return all numeric values by the names above. Raise GpuGone when the GPU is lost."""
    numbers: dict[str, int | None] = {
        name: calls.first_value(functions, handle) for name, functions in _NUMBERS.items()
    }
    for names, functions in _CALLS:
        if (values_of_call := calls.first_value(functions, handle)) is not None:
            numbers |= dict(zip(names, values_of_call, strict=True))
    numbers |= dict(zip(_FIELDS, calls.fields(handle, list(_FIELDS.values())), strict=True))
    return _known(numbers)


def reason_nanoseconds(calls: NvmlCalls, handle: Any, driver_major: int) -> dict[str, int]:
    """Return how many nanoseconds each reason lowered the clocks since the driver was loaded, if the driver counts."""
    fields = dict(_REASON_FIELDS)
    if driver_major >= RENUMBERED_DRIVER:
        fields |= _RENUMBERED_REASON_FIELDS
    return _known(dict(zip(fields, calls.fields(handle, list(fields.values())), strict=True)))


def reasons(calls: NvmlCalls, handle: Any) -> tuple[int | None, int | None]:
    """Return the bits of the reasons that lower the clocks now, and of the reasons that this GPU can report."""
    current = calls.first_value(
        (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons), handle
    )
    supported = calls.first_value(
        (pynvml.nvmlDeviceGetSupportedClocksEventReasons, pynvml.nvmlDeviceGetSupportedClocksThrottleReasons), handle
    )
    return current, supported


def mig(calls: NvmlCalls, handle: Any) -> tuple[bool | None, list[Any]]:
    """Return whether the GPU is partitioned (None: not supported), and the handles of its MIG devices."""
    mode = calls.value(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return None, []
    if mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return False, []
    count_limit = min(calls.value(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, MAX_MIG_INSTANCES)
    answers = (calls.value(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in range(count_limit))
    return True, [instance for instance in answers if instance is not None]


def pids(calls: NvmlCalls, handles: Iterable[Any]) -> tuple[int, ...] | None:
    """Return the pids of the processes that compute on any of these devices; None if unknown."""
    answers = [calls.value(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle) for handle in handles]
    known = [answer for answer in answers if answer is not None]
    running = sorted({process.pid for answer in known for process in answer})
    if len(running) > MAX_PROCESSES:
        calls.errors["too_many_processes"] += len(running) - MAX_PROCESSES
    return tuple(running[:MAX_PROCESSES]) if known else None


def fabric(calls: NvmlCalls, handle: Any) -> Fabric | None:
    """Return the state of the GPU in its NVLink fabric; None without a fabric."""
    info = calls.first_value((_fabric_v2, _fabric_v1), handle)
    if info is None or info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        return None
    cluster = bytes(info.clusterUuid)
    return Fabric(
        state=info.state,
        status=info.status,
        clique=info.cliqueId,
        cluster=str(UUID(bytes=cluster)) if any(cluster) else "",
        health=getattr(info, "healthMask", None),
    )


def text(calls: NvmlCalls, function: Callable[..., str], *arguments: Any) -> str:
    """Return a name or a version; empty if there is none."""
    return (calls.value(function, *arguments) or "")[:MAX_TEXT]


def _known(numbers: Mapping[str, int | None]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number is not None}


def _fabric_v2(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, pynvml.byref(info))
    return info


def _fabric_v1(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info))
    return info


class Links:
    """The links of one GPU, while its handle is valid."""

    def __init__(self, driver_major: int) -> None:
        self._driver_major = driver_major
        self._fields: dict[int, dict[ErrorKind, _Field]] = {}

    def look(self, calls: NvmlCalls, handle: Any, count: int | None) -> tuple[Link, ...]:
        """Return all links of the GPU. ``count``: the number of links that the driver reports, None if unknown."""
        count_limit = pynvml.NVML_NVLINK_MAX_LINKS
        return tuple(self._link(calls, handle, number) for number in range(min(count or 0, count_limit)))

    def _link(self, calls: NvmlCalls, handle: Any, number: int) -> Link:
        state = calls.value(pynvml.nvmlDeviceGetNvLinkState, handle, number)
        if state and number not in self._fields:
            self._find_counters(calls, handle, number)
        fields = self._fields.get(number, {})
        values = calls.fields(handle, list(fields.values())) if fields else []
        errors: dict[str, int] = {kind: value for kind, value in zip(fields, values, strict=True) if value is not None}
        return Link(number, None if state is None else state == pynvml.NVML_FEATURE_ENABLED, errors)

    def _find_counters(self, calls: NvmlCalls, handle: Any, number: int) -> None:
        """Try all counters of a link that is up. A link that is down may not answer."""
        candidates = [(kind, field) for kind in _LINK_FIELDS for field in self._candidates(kind, number)]
        values = calls.fields(handle, [field for _, field in candidates])
        counters: dict[ErrorKind, _Field] = {}
        for (kind, field), value in zip(candidates, values, strict=True):
            if value is not None:
                counters.setdefault(kind, field)
        if counters:  # else the query failed
            self._fields[number] = counters

    def _candidates(self, kind: ErrorKind, number: int) -> list[_Field]:
        fields = [(field, number) for field in _LINK_FIELDS[kind]]
        if kind == "phy_retry" and self._driver_major < RENUMBERED_DRIVER:
            fields = []
        lane = getattr(pynvml, _LANE_FIELDS[kind].format(number), None) if kind in _LANE_FIELDS else None
        return fields if lane is None else [*fields, (lane, 0)]
