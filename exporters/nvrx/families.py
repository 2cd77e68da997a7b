"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.nvrx.cycle import Cycle
from exporters.nvrx.events import SavedLines
from exporters.nvrx.launchers import JobLauncher

_JOB = ("job_id",)
_EACH = "1 per job under NVRx"

CYCLE = Family(
    "rankwatch_nvrx_cycle",
    "gauge",
    "The restart cycle that the job's launchers are in or were in last, from 0.",
    _JOB,
    _EACH,
    "max",
)
NODES = Family(
    "rankwatch_nvrx_nodes",
    "gauge",
    "Nodes of that cycle: active ones, and those that stand by to replace one and have no ranks yet.",
    ("job_id", "role"),
    "2 per job under NVRx",
    "max",
)
EVENTS = Family(
    "rankwatch_nvrx_events_total",
    "counter",
    "Events of the job's launchers. Each of them tells of a failure_detected, also of another node's.",
    ("job_id", "event"),
    "1 per job and event seen, at most 10",
    "max",
)
NOTICES = Family(
    "rankwatch_nvrx_notices_total",
    "counter",
    "Other lines of the launchers and their checks that tell of a decision or of a defect.",
    ("job_id", "notice"),
    "1 per job and notice seen, at most 20",
    "max",
)
TIMEOUTS = Family(
    "rankwatch_nvrx_heartbeat_timeouts_total",
    "counter",
    "Ranks that their monitor gave up and killed, by what it missed: the initial or a subsequent heartbeat, the end of "
    "a section (section) or the begin of the next (out_of_section). Such a rank's SIGKILL is NVRx's.",
    ("job_id", "rank", "kind"),
    "1 per rank and kind seen, at most 1,024 per job",
    "max",
)
RECOVERY = Family(
    "rankwatch_recovery_seconds",
    "gauge",
    "How long the job's last restart took, from the first node's failure_detected until all workers were started, and "
    "until a rank here completed an operation (absent without records).",
    ("job_id", "until"),
    "2 per job that was restarted",
    "max",
)
INTERRUPTIONS = Family(
    "rankwatch_nvrx_interruptions_total",
    "counter",
    "Reports of ranks that restart within their processes, by the rank that made them and what stopped it: exception, "
    "base_exception (such as an exit), soft_timeout, hard_timeout, terminated, unresponsive or other.",
    ("job_id", "rank", "kind"),
    "1 per rank and kind seen, at most 1,024 per job",
    "max",
)
SCORE = Family(
    "rankwatch_nvrx_gpu_score",
    "gauge",
    "How fast the rank's GPU is by NVRx's last report, 1 being the best; it names the three best and the three worst.",
    ("job_id", "rank", "kind"),
    "12 per job with straggler reports",
    "max",
)
LAUNCHER = Family(
    "rankwatch_nvrx_launcher_info",
    "gauge",
    "The launcher above the job's ranks here (ft_launcher or torchrun) and the options on its command line; always 1. "
    "segment: the nodes of one NVLink domain that belong together. A label is empty if the command line lacks it.",
    ("job_id", *JobLauncher._fields),
    _EACH,
    "max",
)
FAMILIES = (LAUNCHER, CYCLE, NODES, EVENTS, NOTICES, TIMEOUTS, RECOVERY, INTERRUPTIONS, SCORE)


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
        by_name = ((EVENTS, job.events), (NOTICES, job.notices), (RECOVERY, job.recovery_seconds()))
        for family, values in by_name:
            for name, value in values.items():
                rows[family].add((job_id, name), value)
        for family, by_rank in ((TIMEOUTS, job.timeouts), (INTERRUPTIONS, job.interruptions), (SCORE, job.scores)):
            for (rank, kind), value in by_rank.items():
                rows[family].add((job_id, rank, kind), value)
    return [one.metric for one in rows.values()]
