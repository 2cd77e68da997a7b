"""The metric families of the exporter, and their rendering from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.nvrx.events import SavedLines
from exporters.nvrx.launchers import JobLauncher
from exporters.nvrx.reading import Cycle

_JOB = ("job_id",)
_EACH = "1 per job under NVRx"

# fmt: off
CYCLE = Family(
    "rankwatch_nvrx_cycle", "gauge",
    "Current or last restart cycle of the job's launchers, counted from 0.",
    _JOB, _EACH, "max")
NODES = Family(
    "rankwatch_nvrx_nodes", "gauge",
    "Nodes of the current restart cycle: active nodes, and standby nodes, which have no ranks and can replace a node.",
    ("job_id", "role"), "2 per job under NVRx", "max")
EVENTS = Family(
    "rankwatch_nvrx_events_total", "counter",
    "Events that the job's launchers and their health checks logged: steps of a restart, decisions and defects. Every "
    "launcher logs failure_detected, even for a failure on another node.",
    ("job_id", "event"), "1 per job and event seen, at most 30", "max")
TIMEOUTS = Family(
    "rankwatch_nvrx_heartbeat_timeouts_total", "counter",
    "Ranks that NVRx's rank monitor killed after a timeout. kind: the monitor missed the initial or a subsequent "
    "heartbeat, the end of a section (section) or the start of the next one (out_of_section). NVRx sends the SIGKILL.",
    ("job_id", "rank", "kind"), "1 per rank and kind seen, at most 1,024 per job", "max")
RECOVERY = Family(
    "rankwatch_recovery_seconds", "gauge",
    "Duration of the job's last restart. It begins at the first failure_detected of any node. until names its end: "
    "workers_started (all workers were started), or progress (a rank on this node completed an operation; absent "
    "without NCCL records).",
    ("job_id", "until"), "2 per job that was restarted", "max")
INTERRUPTIONS = Family(
    "rankwatch_nvrx_interruptions_total", "counter",
    "Interruptions of ranks that restart within their processes, by reporting rank. kind, the cause: exception, "
    "base_exception (such as an exit), soft_timeout, hard_timeout, terminated, unresponsive or other.",
    ("job_id", "rank", "kind"), "1 per rank and kind seen, at most 1,024 per job", "max")
SCORE = Family(
    "rankwatch_nvrx_gpu_score", "gauge",
    "GPU speed of the rank in NVRx's last straggler report; 1 is the best. A report has the 3 best and 3 worst ranks.",
    ("job_id", "rank", "kind"), "12 per job with straggler reports", "max")
LAUNCHER = Family(
    "rankwatch_nvrx_launcher_info", "gauge",
    "Launcher of the job's ranks on this node (ft_launcher or torchrun) and its command line options; always 1. "
    "segment: number of nodes that must share an NVLink domain. A label is empty if the command line lacks the option.",
    ("job_id", *JobLauncher._fields), _EACH, "max")
# fmt: on
FAMILIES = (LAUNCHER, CYCLE, NODES, EVENTS, TIMEOUTS, RECOVERY, INTERRUPTIONS, SCORE)


class NvrxSnapshot(msgspec.Struct, frozen=True):
    """The data of one render. ``lines``: SavedLines, encoded."""

    cycles: Mapping[str, Cycle] = {}
    lines: bytes = b"\x80"
    launchers: Mapping[str, JobLauncher] = {}


_DECODER = msgspec.msgpack.Decoder(SavedLines)


def render(snapshot: NvrxSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for job_id, launcher in sorted(snapshot.launchers.items()):
        rows[LAUNCHER].add((job_id, *launcher), 1.0)
    for job_id, cycle in sorted(snapshot.cycles.items()):
        rows[CYCLE].add((job_id,), cycle.cycle)
        rows[NODES].add((job_id, "active"), cycle.active)
        rows[NODES].add((job_id, "standby"), cycle.standby)
    for job_id, job in sorted(_DECODER.decode(snapshot.lines).jobs.items()):
        for family, values in ((EVENTS, job.events), (RECOVERY, job.recovery_seconds())):
            for name, value in values.items():
                rows[family].add((job_id, name), value)
        for family, by_rank in ((TIMEOUTS, job.timeouts), (INTERRUPTIONS, job.interruptions), (SCORE, job.scores)):
            for (rank, kind), value in by_rank.items():
                rows[family].add((job_id, rank, kind), value)
    return [row.metric for row in rows.values()]
