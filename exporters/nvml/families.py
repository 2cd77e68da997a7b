"""A snapshot as metric families. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.sdk.hardware import gpu_families, gpu_faults
from agent.sdk.metrics import Family, Metric, Rows
from agent.sdk.system import pci_address
from exporters.nvml import clocks, fields
from exporters.nvml.fields import GPU_LABELS
from exporters.nvml.gpus import GpuView
from exporters.nvml.judge import RECOVERY_NONE
from exporters.nvml.nvlinks import fabric, state

DRIVER_HUNG = Family(
    "rankwatch_gpu_driver_hung",
    "gauge",
    "1 while a call into the driver does not return: nothing else is known of the GPUs then; else 0.",
)
DRIVER_UP = Family(
    "rankwatch_gpu_driver_up",
    "gauge",
    "1 when the last look at the GPUs was answered, 0 while the driver hangs or NVML cannot be initialised.",
)
DRIVER_ERROR = Family(
    "rankwatch_gpu_driver_error",
    "gauge",
    "Always 1: why NVML cannot be initialised, by its own name for it, such as lib_rm_version_mismatch (the driver was "
    "upgraded and is not yet loaded anew); absent while it can.",
    ("error",),
    "1 per node, while it fails",
)
READ_ERRORS = Family(
    "rankwatch_gpu_read_errors_total",
    "counter",
    "What the driver should have told and did not, by NVML's name for the error, or ours: implausible (a number that "
    "cannot be), unreadable, duplicate and nameless (GPUs), too_many_gpus, too_many_processes, unknown_event, "
    "event_of_unknown_gpu. What a GPU does not have is no error.",
    ("error",),
    "1 per error that happened",
    "sum",
)
XID_ERRORS = Family(
    "rankwatch_gpu_xid_errors_total",
    "counter",
    "Xid errors that the driver told of the GPU while the agent ran, by number; of more than 32 the rest is other.",
    (*GPU_LABELS, "xid"),
    "1 per GPU and Xid that happened",
)
XID_LAST = Family(
    "rankwatch_gpu_xid_last_timestamp_seconds",
    "gauge",
    "When the Xid was last seen: at the look that follows it, up to 10 s later.",
    (*GPU_LABELS, "xid"),
    "1 per GPU and Xid that happened",
)
ECC_EVENTS = Family(
    "rankwatch_gpu_ecc_events_total",
    "counter",
    "Times that the driver told of memory errors while the agent ran: corrected or uncorrected; of GPUs that tell.",
    (*GPU_LABELS, "type"),
    "1 per GPU and type that happened",
)
RESETS = Family(
    "rankwatch_gpu_resets_seen_total",
    "counter",
    "Times that the GPU was reset or its driver loaded anew: it was lost and is back, counters began again, or the "
    "driver's wish for a reset was granted.",
    GPU_LABELS,
    "1 per GPU that was reset",
)
RECOVERY_ACTION = Family(
    "rankwatch_gpu_recovery_action",
    "gauge",
    "Always 1: what the driver says the GPU needs: gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
    "recover_imex_domain, bus_reset, system_reboot, or unknown_N for one that has no name yet; none only with "
    "all_values.",
    (*GPU_LABELS, "action"),
    "1 per GPU that needs something, or with all_values",
)
MIG_INSTANCE = Family(
    "rankwatch_gpu_mig_instance_info",
    "gauge",
    "Always 1: a MIG device of the GPU, and the ids of its GPU instance and compute instance.",
    (*GPU_LABELS, "mig_uuid", "gpu_instance", "compute_instance"),
    "1 per MIG device",
)
FABRIC_STATE = Family(
    "rankwatch_gpu_fabric_state",
    "gauge",
    "Always 1: how far the GPU has joined its NVLink fabric: not_started, in_progress or unknown_N; completed only "
    "with all_values.",
    (*GPU_LABELS, "state"),
    "1 per GPU that has not joined its fabric, or with all_values",
)
FABRIC_INFO = Family(
    "rankwatch_gpu_fabric_info",
    "gauge",
    "Always 1: the NVLink domain (cluster UUID) and clique that the GPU has joined; only within a domain.",
    (*GPU_LABELS, "cluster_uuid", "clique"),
    "1 per GPU of a domain",
)
FABRIC_ISSUE = Family(
    "rankwatch_gpu_fabric_issue",
    "gauge",
    "Always 1: an issue that the fabric of the GPU has: degraded_bandwidth, route_recovery, route_unhealthy, "
    "access_timeout_recovery, no_partition, manager_disconnected, incorrect_configuration.",
    (*GPU_LABELS, "issue"),
    "1 per GPU of a fabric and issue",
)
FAMILIES = (
    DRIVER_HUNG,
    DRIVER_UP,
    DRIVER_ERROR,
    gpu_families.DRIVER_INFO,
    READ_ERRORS,
    gpu_families.PRESENT,
    gpu_families.INFO,
    *fields.FAMILIES,
    XID_ERRORS,
    XID_LAST,
    ECC_EVENTS,
    RESETS,
    gpu_families.CLOCKS_SECONDS,
    RECOVERY_ACTION,
    MIG_INSTANCE,
    gpu_families.PROCESSES,
    FABRIC_STATE,
    FABRIC_INFO,
    FABRIC_ISSUE,
    *state.FAMILIES,
)


class NvmlSnapshot(msgspec.Struct, frozen=True):
    """What is rendered. ``error``: why NVML cannot be initialised, empty when it can. ``cuda``: as 13010 for 13.1.

    ``all_values``: every number, also of what is not wrong. ``each_nvlink``: all of each link, not only what is wrong
    with one.
    """

    hung: bool = False
    error: str = ""
    driver: str = ""
    cuda: int = 0
    gpus: tuple[GpuView, ...] = ()
    all_values: bool = False
    each_nvlink: bool = False
    errors: dict[str, int] = {}


class _Page:
    """Families under construction; those without a series are left out."""

    def __init__(self) -> None:
        self._rows: dict[Family, Rows] = {family: family.rows() for family in FAMILIES}

    def add(self, family: Family, labels: tuple[str, ...], value: float) -> None:
        self._rows[family].add(labels, value)

    def families(self) -> Iterable[Metric]:
        return (rows.metric for rows in self._rows.values() if rows.metric.labels)


def render(snapshot: NvmlSnapshot) -> Iterable[Metric]:
    """Yield the families."""
    page = _Page()
    page.add(DRIVER_HUNG, (), float(snapshot.hung))
    page.add(DRIVER_UP, (), float(not snapshot.hung and not snapshot.error))
    if snapshot.error:
        page.add(DRIVER_ERROR, (snapshot.error,), 1.0)
    if snapshot.driver:
        page.add(
            gpu_families.DRIVER_INFO, (snapshot.driver, f"{snapshot.cuda // 1000}.{snapshot.cuda % 1000 // 10}"), 1.0
        )
    for reason, count in snapshot.errors.items():
        page.add(READ_ERRORS, (reason,), count)
    for gpu in snapshot.gpus:
        _gpu(page, gpu, snapshot)
    return page.families()


def _gpu(page: _Page, gpu: GpuView, asked: NvmlSnapshot) -> None:
    labels = (str(gpu.index), gpu.uuid)
    page.add(gpu_families.PRESENT, labels, float(gpu.reading is not None))
    if not gpu.uuid:
        return
    page.add(gpu_families.INFO, (*labels, pci_address(gpu.pci), gpu.name), 1.0)
    if gpu.resets:
        page.add(RESETS, labels, gpu.resets)
    for xid, seen in gpu.xids.items():
        page.add(XID_ERRORS, (*labels, xid), seen.count)
        page.add(XID_LAST, (*labels, xid), seen.last_seconds)
    for kind, count in gpu.ecc_events.items():
        page.add(ECC_EVENTS, (*labels, kind.removeprefix("ecc_")), count)
    if gpu.reading is not None:
        _numbers(page, gpu, labels, all_values=asked.all_values)
        _fabric(page, gpu, labels, all_values=asked.all_values)
        _links(page, gpu, labels, each=asked.each_nvlink)


def _numbers(page: _Page, gpu: GpuView, labels: tuple[str, str], *, all_values: bool) -> None:
    assert gpu.reading is not None  # noqa: S101  # for the type checker
    reading = gpu.reading
    for name, value in (*reading.values.items(), *reading.activity.items()):
        field = fields.FIELDS.get(name)
        if field is not None and field.is_shown(value, all_values=all_values):
            page.add(field.family, (*labels, *field.labels), field.in_base_units(value))
    action = reading.values.get("recovery_action")
    if action is not None and (all_values or action != RECOVERY_NONE):
        page.add(RECOVERY_ACTION, (*labels, _recovery_action(action)), 1.0)
    for reason, seconds in gpu.reason_seconds.items():
        if clocks.is_shown(reason, seconds, all_values=all_values):
            page.add(gpu_families.CLOCKS_SECONDS, (*labels, reason), seconds)
    if reading.pids is not None:
        page.add(gpu_families.PROCESSES, labels, len(reading.pids))
    for mig in reading.mig:
        page.add(MIG_INSTANCE, (*labels, mig.uuid, str(mig.gpu_instance), str(mig.compute_instance)), 1.0)


def _recovery_action(number: int) -> str:
    names = gpu_faults.RECOVERY_ACTIONS
    return names[number] if 0 <= number < len(names) else f"unknown_{number}"


def _fabric(page: _Page, gpu: GpuView, labels: tuple[str, str], *, all_values: bool) -> None:
    joined = gpu.reading.fabric if gpu.reading is not None else None
    if joined is None:
        return
    if all_values or joined.state != fabric.COMPLETED:
        page.add(FABRIC_STATE, (*labels, fabric.STATES.get(joined.state, f"unknown_{joined.state}")), 1.0)
    if joined.cluster:
        page.add(FABRIC_INFO, (*labels, joined.cluster, str(joined.clique)), 1.0)
    for issue, bad in fabric.issues(joined).items():
        if bad:
            page.add(FABRIC_ISSUE, (*labels, issue), 1.0)


def _links(page: _Page, gpu: GpuView, labels: tuple[str, str], *, each: bool) -> None:
    told = [link.up for link in gpu.links if link.up is not None]
    if told:
        page.add(state.LINKS_UP, labels, sum(told))
    for kind, count in () if each else gpu.link_errors.items():
        page.add(state.LINK_ERRORS, (*labels, "", kind), count)
    for link in gpu.links:
        number = str(link.number)
        if link.up is not None and (each or not link.up):
            page.add(state.LINK_UP, (*labels, number), float(link.up))
        for kind, count in link.errors.items() if each else ():
            page.add(state.LINK_ERRORS, (*labels, number, kind), count)
        if link.flagged_ratio is not None and (each or link.flagged_ratio):
            page.add(state.LINK_FLAGGED, (*labels, number), link.flagged_ratio)
