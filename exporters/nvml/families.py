"""Renders a snapshot as metric families. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.hardware import gpu_families, gpu_faults
from agent.sdk.metrics import Family, Metric, Rows
from agent.sdk.system import pci_address
from exporters.nvml import fields
from exporters.nvml.gpus import GpuView
from exporters.nvml.judge import RECOVERY_NONE, is_shown
from exporters.nvml.reading import GpuReading

gauge, counter = gpu_families.gauge, gpu_families.counter

# fmt: off
READ_ERRORS = Family("rankwatch_gpu_read_errors_total", "counter",
    "Values that could not be read from the driver, by error. error is NVML's name, or the exporter's: implausible "
    "(an impossible number), unreadable, duplicate and nameless (GPUs), too_many_gpus, too_many_processes, "
    "unknown_event, event_of_unknown_gpu. A value that a GPU does not have is not an error.",
    ("error",), "1 per error that happened", "sum")
XID_ERRORS = counter("rankwatch_gpu_xid_errors_total",
    "Xid errors that the driver reported for the GPU while the agent ran, by number. After 32 different numbers per "
    "GPU, further numbers count as other.",
    "1 per GPU and Xid that happened", "xid")
RECOVERY_ACTION = gauge("rankwatch_gpu_recovery_action",
    "Always 1: the action that the driver requests for the GPU: gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
    "recover_imex_domain, bus_reset, system_reboot, or unknown_N for a number without a name. Absent while no action "
    "is needed.",
    "1 per GPU that needs an action", "action")
FABRIC_INFO = gauge("rankwatch_gpu_fabric_info",
    "Always 1: the NVLink domain (cluster UUID) and the clique of the GPU. Absent for a GPU without a domain.",
    "1 per GPU of a domain", "cluster_uuid", "clique")
LINKS_UP = gauge("rankwatch_nvlink_links_up", "NVLinks of the GPU that are up.", "1 per GPU with NVLinks")
LINK_ERRORS = counter("rankwatch_nvlink_errors_total",
    "Errors on all NVLinks of the GPU, by kind: replay (packets sent again), recovery (the link was trained again), "
    "crc (of a flow control unit), receive (errors at the receiver), phy_retry (blocks that the physical layer sent "
    "again). Each GPU generation counts only some kinds.",
    "1 to 5 per GPU", "kind")
LINK_FLAGGED = gauge("rankwatch_nvlink_flagged_ratio",
    "Share of the last 30 checks (one each 10 s) with new errors of any kind on the NVLink. More than 0.5 is a bad "
    "link. Absent while 0.",
    "1 per NVLink with errors", "link")
# fmt: on
FAMILIES = (
    gpu_families.DRIVER_INFO,
    READ_ERRORS,
    gpu_families.PRESENT,
    gpu_families.INFO,
    *fields.FAMILIES,
    XID_ERRORS,
    gpu_families.CLOCKS_SECONDS,
    RECOVERY_ACTION,
    gpu_families.PROCESSES,
    FABRIC_INFO,
    LINKS_UP,
    LINK_ERRORS,
    LINK_FLAGGED,
)  # fmt: skip


class NvmlSnapshot(msgspec.Struct, frozen=True):
    """The input of ``render``. ``version``: the versions of the driver and of CUDA."""

    gpus: tuple[GpuView, ...] = ()
    errors: dict[str, int] = {}
    version: tuple[str, str] = ("", "")


def render(snapshot: NvmlSnapshot) -> Iterable[Metric]:
    """Return the metric families of a snapshot. A family without a series is left out."""
    rows = {family: family.rows() for family in FAMILIES}
    if snapshot.version[0]:
        rows[gpu_families.DRIVER_INFO].add((*snapshot.version, ""), 1.0)
    for reason, count in snapshot.errors.items():
        rows[READ_ERRORS].add((reason,), count)
    for gpu in snapshot.gpus:
        _gpu(rows, gpu)
    return [row.metric for row in rows.values() if row.metric.labels]


def _gpu(rows: Mapping[Family, Rows], gpu: GpuView) -> None:
    labels = (str(gpu.index), gpu.uuid)
    rows[gpu_families.PRESENT].add(labels, float(gpu.reading is not None))
    if not gpu.uuid:
        return
    rows[gpu_families.INFO].add((*labels, pci_address(gpu.pci), gpu.name), 1.0)
    for xid, count in gpu.xids.items():
        rows[XID_ERRORS].add((*labels, xid), count)
    if gpu.reading is None:
        return
    _reading(rows, gpu.reading, labels)
    for reason, seconds in gpu.reason_seconds.items():
        if is_shown(reason, seconds):
            rows[gpu_families.CLOCKS_SECONDS].add((*labels, reason), seconds)
    if gpu.links.up:
        rows[LINKS_UP].add(labels, sum(gpu.links.up.values()))
    for kind, count in gpu.links.errors.items():
        rows[LINK_ERRORS].add((*labels, kind), count)
    for link, ratio in gpu.links.flagged.items():
        if ratio:
            rows[LINK_FLAGGED].add((*labels, str(link)), ratio)


def _reading(rows: Mapping[Family, Rows], reading: GpuReading, labels: tuple[str, str]) -> None:
    for name, value in (*reading.values.items(), *reading.activity.items()):
        if field := fields.FIELDS.get(name):
            rows[field.family].add((*labels, *field.labels), value * field.times / field.per)
    action = reading.values.get("recovery_action", RECOVERY_NONE)
    if action != RECOVERY_NONE:
        names = gpu_faults.RECOVERY_ACTIONS
        rows[RECOVERY_ACTION].add((*labels, names[action] if action < len(names) else f"unknown_{action}"), 1.0)
    if reading.pids is not None:
        rows[gpu_families.PROCESSES].add(labels, len(reading.pids))
    if reading.fabric is not None and reading.fabric.cluster:
        rows[FABRIC_INFO].add((*labels, reading.fabric.cluster, str(reading.fabric.clique)), 1.0)
