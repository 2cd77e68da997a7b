"""A page with what a node's exporters would tell of hardware in trouble: recorded trees, and what those lack."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from client_metrics import encode

from agent.hardware.fault_table import GpuFault
from agent.hardware.ledger import NODE, CheckState, Entry, Finding, Subject
from agent.ranks import families as rank_families, health
from agent.ranks.health import HealthSnapshot, counted_checks
from agent.ranks.snapshot import RankSnapshot
from agent.sdk.hardware import FaultSeen, Told, gpu_families, gpu_faults
from agent.sdk.metrics import Family, Metric
from exporters.job_log import families as job_log
from exporters.netdev import pause
from exporters.nvml import families as nvml
from exporters.process.foreign import FOREIGN
from exporters.process.usage import families as usage
from exporters.rdma import families as rdma
from exporters.storage import StorageConfig, StorageExporter
from exporters.storage.probe import FreeSpace, Probe

DATA = Path(__file__).parents[1] / "data"
RECORDED = ("amdgpu", "nvml", "rdma", "netdev", "kernel_log")
XID, HUNG_PATH = "79", "/data"
FAILED_SECONDS_AGO = 3600
STRUCK = ("gpu_xid", "nvlink_down")
"""What has failed of GPU 0, and stands against the rank there."""


def hardware_page(job_id: str, rank: str) -> bytes:
    """Return the text; ``rank`` of the job is the one on the GPU that has failed."""
    recorded = [
        line
        for name in RECORDED
        for line in (DATA / name / "expected.prom").read_text().splitlines()
        if not line.startswith("#")
    ]
    return "\n".join(recorded).encode() + b"\n" + encode(_families(job_id, rank)).body


def _families(job_id: str, rank: str) -> Iterable[Metric]:
    gpu = Subject("gpu", "GPU-0")
    since = time.time() - FAILED_SECONDS_AGO
    failed = [Entry("nvml", gpu, check, Finding(CheckState.FAILED, since)) for check in STRUCK]
    well = Entry("nvml", NODE, "gpu_driver_hung", Finding(CheckState.OK, since))
    nobody = RankSnapshot((), 0, 0, 0, 0, 0, 0, time.time())
    seen = FaultSeen(gpu_faults.judge("nvidia", Told(XID)).fault, since)
    faults = (GpuFault("0", "GPU-0", "0000:3b:00.0", seen),)
    for family in health.families(HealthSnapshot(nobody, (*failed, well), counted_checks((), ()), 0, faults)):
        if family.family not in (health.RANK_HEALTHY, health.RANK_UNHEALTHY):
            yield family
    yield _rows(health.RANK_HEALTHY, ((job_id, rank), 0.0))
    yield _rows(health.RANK_UNHEALTHY, *(((job_id, rank, check), 1.0) for check in STRUCK))
    yield _rows(nvml.LINK_FLAGGED, (("0", "GPU-0", "3"), 0.6))
    yield _rows(rank_families.RANK_INFO, ((job_id, rank, "0", "0", "GPU-0", "", "", "1", "", "", ""), 1.0))
    for family in (gpu_families.SM_ACTIVE, gpu_families.TENSOR_ACTIVE, gpu_families.DRAM_ACTIVE):
        yield _rows(family, (("0", "GPU-0"), 0.1))
    yield _rows(FOREIGN, (("0", "GPU-0", "ann"), 1.0))
    yield _rows(job_log.EVENTS, ((job_id, rank, "port_error", "root"), 2.0))
    yield _rows(job_log.FIRST_ROOT, ((job_id, "port_error", rank, "here", "restart_elsewhere"), 1.0))
    yield _rows(job_log.FIRST_ROOT_SECONDS, ((job_id,), since))
    yield _rows(pause.FRAMES, (("eth0", "receive", "3"), 7.0))
    yield _rows(rdma.SWITCH_INFO, (("mlx5_0", "1", "leaf1", "7"), 1.0))
    for family in (usage.IO_WAIT, usage.MAJOR_FAULTS, usage.SWAP, usage.CHILDREN_STOPPED):
        yield _rows(family, ((job_id, rank), 1.0))
    yield _rows(usage.BLOCKED_THREADS, ((job_id, rank, "nfs"), 2.0))
    yield _rows(usage.PRESSURE_WAITING, ((job_id, "memory"), 3.0))
    yield _rows(usage.THROTTLED, ((job_id,), 4.0))
    room = FreeSpace(size_bytes=1000, available_bytes=250, inodes=10, inodes_available=5)
    hung = Probe(HUNG_PATH, ok=True, seconds=0.1, under_way_seconds=60.0, room=room)
    well_answered = Probe("/home", ok=True, seconds=0.1, under_way_seconds=0.0, room=room)
    yield from StorageExporter(StorageConfig()).families((hung, well_answered))


def _rows(family: Family, *series: tuple[tuple[str, ...], float]) -> Metric:
    rows = family.rows()
    for labels, value in series:
        rows.add(labels, value)
    return rows.metric
