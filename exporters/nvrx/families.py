"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.nvrx.cycle import Cycle
from exporters.nvrx.events import JobEvents
from exporters.nvrx.options import LauncherOptions

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
CYCLE_START = Family(
    "rankwatch_nvrx_cycle_start_timestamp_seconds", "gauge", "When that cycle began.", _JOB, _EACH, "max"
)
CYCLE_RUNNING = Family(
    "rankwatch_nvrx_cycle_running",
    "gauge",
    "1 while that cycle has no end and a rank of the job runs here, else 0: a launcher that was killed writes no end.",
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
EXPECTED = Family(
    "rankwatch_nvrx_expected_ranks",
    "gauge",
    "Ranks that the active nodes should have: their number times LOCAL_WORLD_SIZE.",
    _JOB,
    _EACH,
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
PHASE_SECONDS = Family(
    "rankwatch_nvrx_phase_seconds_total",
    "counter",
    "Time of launchers in the phases of restarts, summed over them: stop, open, health_check, rendezvous, start.",
    ("job_id", "phase"),
    "1 per job and phase seen, at most 5",
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
STRAGGLERS = Family(
    "rankwatch_nvrx_straggler_warnings_total",
    "counter",
    "Warnings of NVRx's straggler detection that name the rank: slower than others (relative) or than it was "
    "(individual).",
    ("job_id", "rank", "kind"),
    "1 per rank and kind seen, at most 1,024 per job",
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
    "What the launcher above the job's ranks here was asked for on its command line; always 1. launcher: ft_launcher "
    "or torchrun. restart_policy: restart when any worker group failed, or when fewer nodes than the least are "
    "healthy. segment: so many nodes of one NVLink domain belong together. Labels are empty where that is not known.",
    ("job_id", "launcher", "max_nodes", "max_restarts", "restart_policy", "segment"),
    _EACH,
    "max",
)
MINIMUM_NODES = Family(
    "rankwatch_nvrx_minimum_nodes",
    "gauge",
    "The least number of nodes with which the launcher runs the job (--nnodes=MIN:MAX).",
    _JOB,
    _EACH,
    "max",
)
GROUP_RANK = Family(
    "rankwatch_nvrx_group_rank_info",
    "gauge",
    "The number that the launcher gave this node among those of the job (GROUP_RANK); always 1. Nodes that stand by "
    "have none.",
    ("job_id", "group_rank"),
    "1 per launcher of a job under NVRx, at most 16 per job",
)
FAMILIES = (
    LAUNCHER,
    MINIMUM_NODES,
    GROUP_RANK,
    CYCLE,
    CYCLE_START,
    CYCLE_RUNNING,
    NODES,
    EXPECTED,
    EVENTS,
    NOTICES,
    TIMEOUTS,
    PHASE_SECONDS,
    RECOVERY,
    STRAGGLERS,
    INTERRUPTIONS,
    SCORE,
)
_NOT_OF_LINES = (LAUNCHER, MINIMUM_NODES, GROUP_RANK, CYCLE, CYCLE_START, CYCLE_RUNNING, NODES, EXPECTED)


class NvrxSnapshot(msgspec.Struct, frozen=True):
    """What is rendered. ``events``: a mapping of jobs to JobEvents, encoded; ``running``: jobs with live ranks here.

    ``local_sizes``: by job, how many ranks a node has. ``launchers``: by job, what its launcher was asked for;
    ``group_ranks``: the numbers of this node in each job.
    """

    cycles: Mapping[str, Cycle] = {}
    running: frozenset[str] = frozenset()
    local_sizes: Mapping[str, int] = {}
    events: bytes = b"\x80"
    launchers: Mapping[str, LauncherOptions] = {}
    group_ranks: Mapping[str, frozenset[str]] = {}


EVENTS_DECODER = msgspec.msgpack.Decoder(dict[str, JobEvents])


def render(snapshot: NvrxSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    yield from _launchers(snapshot)
    yield from _cycles(snapshot)
    yield from _events(EVENTS_DECODER.decode(snapshot.events))


def _launchers(snapshot: NvrxSnapshot) -> Iterable[Metric]:
    launcher, minimum, numbers = LAUNCHER.rows(), MINIMUM_NODES.rows(), GROUP_RANK.rows()
    for job_id, asked in sorted(snapshot.launchers.items()):
        launcher.add((job_id, asked.launcher, asked.maximum, asked.restarts, asked.policy, asked.segment), 1.0)
        if asked.minimum is not None:
            minimum.add((job_id,), asked.minimum)
    for job_id, found in sorted(snapshot.group_ranks.items()):
        for number in sorted(found, key=int):
            numbers.add((job_id, number), 1.0)
    return [rows.metric for rows in (launcher, minimum, numbers)]


def _cycles(snapshot: NvrxSnapshot) -> Iterable[Metric]:
    number, start, running = CYCLE.rows(), CYCLE_START.rows(), CYCLE_RUNNING.rows()
    nodes, expected = NODES.rows(), EXPECTED.rows()
    for job_id, cycle in sorted(snapshot.cycles.items()):
        job = (job_id,)
        number.add(job, cycle.cycle)
        start.add(job, cycle.started)
        running.add(job, float(cycle.ended is None and job_id in snapshot.running))
        nodes.add((job_id, "active"), len(cycle.active))
        nodes.add((job_id, "standby"), len(cycle.standby))
        if job_id in snapshot.local_sizes:
            expected.add(job, len(cycle.active) * snapshot.local_sizes[job_id])
    return [rows.metric for rows in (number, start, running, nodes, expected)]


def _events(jobs: Mapping[str, JobEvents]) -> Iterable[Metric]:
    rows = {family: family.rows() for family in FAMILIES if family not in _NOT_OF_LINES}
    for job_id, job in sorted(jobs.items()):
        plain = (
            (EVENTS, job.events),
            (NOTICES, job.notices),
            (PHASE_SECONDS, job.phase_seconds),
            (RECOVERY, job.recovery_seconds()),
        )
        for family, values in plain:
            for name, value in values.items():
                rows[family].add((job_id, name), value)
        of_jobs_ranks = (
            (TIMEOUTS, job.timeouts),
            (STRAGGLERS, job.stragglers),
            (INTERRUPTIONS, job.interruptions),
            (SCORE, job.scores),
        )
        for family, of_ranks in of_jobs_ranks:
            for (rank, kind), value in of_ranks.items():
                rows[family].add((job_id, rank, kind), value)
    return [found.metric for found in rows.values()]
