"""The rank table as metric families for people and dashboards; pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.core.metrics import Family, Metric
from agent.ranks import communicators, job_families
from agent.ranks.job_families import state_of
from agent.ranks.naming import job_owners
from agent.ranks.rank.exit_status import ending
from agent.ranks.snapshot import RankSnapshot, RankView
from agent.ranks.usage_unread import UNREAD

_RANK = ("job_id", "rank")

RANK_UP = Family(
    "rankwatch_rank_up",
    "gauge",
    "1 while the rank's process runs on this node, 0 after it left, until its record expires.",
    _RANK,
    "1 per rank",
    "max",
)
RANK_STATE = Family(
    "rankwatch_rank_state",
    "gauge",
    "State of the rank by all that this node knows of it (process, records, RAS): alive, unresponsive, "
    "exited, dead, finished or unknown; always 1. States that do not hold have no series.",
    (*_RANK, "state"),
    "1 per rank",
    "max",
)
RANK_INFO = Family(
    "rankwatch_rank_info",
    "gauge",
    "Facts about a live rank, to be joined on job_id and rank; always 1. Empty labels are not known; a rank that uses "
    "several GPUs has them with commas.",
    (*_RANK, "local_rank", "gpu", "gpu_uuid", "pci", "nic", "pid", "user", "pod", "container"),
    "1 per live rank",
)
RANK_START = Family(
    "rankwatch_rank_start_timestamp_seconds",
    "gauge",
    "When the rank's process started. A new value means that the rank was restarted.",
    _RANK,
    "1 per rank",
    "max",
)
RANK_EXIT = Family(
    "rankwatch_rank_exit_timestamp_seconds",
    "gauge",
    "When the rank's process was seen to be gone; absent while it runs.",
    _RANK,
    "1 per rank that left",
    "max",
)
RANK_EXIT_INFO = Family(
    "rankwatch_rank_exit_info",
    "gauge",
    "How the rank's process ended; always 1. reason: exited, signaled, oom_killed (by the kernel or systemd-oomd) or "
    "unknown; signal and code are empty where they do not apply.",
    (*_RANK, "reason", "signal", "code"),
    "1 per rank that left",
)
RANK_PROGRESS = Family(
    "rankwatch_rank_last_progress_timestamp_seconds",
    "gauge",
    "When the rank last completed an operation, as far as records tell; absent without records.",
    _RANK,
    "1 per rank with records",
    "max",
)
RANK_IDENTITY_SOURCE = Family(
    "rankwatch_rank_identity_source",
    "gauge",
    "Who named the rank (environment, communicator, title of the process, local_index in start order, pid) and what "
    "proves whose job it is (cgroup or parent of the scheduler, pod, none); always 1.",
    (*_RANK, "source", "proof"),
    "1 per rank",
    "max",
)
IDENTITY_CONFLICTS = Family(
    "rankwatch_rank_identity_conflicts_total",
    "counter",
    "Contradictions about who a process is, by kind. communicator: records that contradict the rank that "
    "a process already has; it keeps its rank. owner: processes that claim the job id of another owner; "
    "they are shown under that id with a suffix.",
    ("kind",),
    "2 per node",
    "sum",
)
RANKS_DUPLICATE = Family(
    "rankwatch_rank_duplicates",
    "gauge",
    "Live processes that are not exported because another live process already has their job_id and rank.",
    aggregate="sum",
)
RANKS_UNIDENTIFIED = Family(
    "rankwatch_rank_processes_unidentified",
    "gauge",
    "Live processes that initialised NCCL and whose rank is not known: environment not readable and no records.",
    aggregate="sum",
)
RANKS_UNREADABLE = Family(
    "rankwatch_rank_environments_unreadable",
    "gauge",
    "Live rank processes whose environment the agent may not read: for jobs of other users it needs CAP_SYS_PTRACE.",
    aggregate="sum",
)
RANKS_REFUSED = Family(
    "rankwatch_rank_table_refused_total",
    "counter",
    "Processes, writers and members of communicators that were left out because the rank table was full.",
    aggregate="sum",
)

NODE_TIME = Family(
    "rankwatch_node_time_seconds",
    "gauge",
    "The node's clock when this scrape was answered, since the epoch. Its value less timestamp() of the "
    "series is how far the clock is ahead of Prometheus': use it to correct times of this node (exits, "
    "starts).",
)

FAMILIES: tuple[Family, ...] = (
    RANK_UP,
    RANK_STATE,
    RANK_INFO,
    RANK_START,
    RANK_EXIT,
    RANK_EXIT_INFO,
    RANK_PROGRESS,
    RANK_IDENTITY_SOURCE,
    IDENTITY_CONFLICTS,
    RANKS_DUPLICATE,
    RANKS_UNIDENTIFIED,
    RANKS_UNREADABLE,
    RANKS_REFUSED,
    UNREAD,
    NODE_TIME,
    *job_families.FAMILIES,
    *communicators.FAMILIES,
)


def families(snapshot: RankSnapshot) -> Iterable[Metric]:
    """Render the rank table."""
    yield from _ranks(snapshot.ranks)
    yield from job_families.render(snapshot.ranks)
    yield from communicators.render(snapshot.ranks)
    conflicts = IDENTITY_CONFLICTS.rows()
    conflicts.add(("communicator",), snapshot.conflicts)
    conflicts.add(("owner",), snapshot.owner_conflicts)
    yield conflicts.metric
    yield RANKS_DUPLICATE.single(snapshot.duplicates)
    yield RANKS_UNIDENTIFIED.single(snapshot.unidentified)
    yield RANKS_UNREADABLE.single(snapshot.unreadable)
    yield RANKS_REFUSED.single(snapshot.refused)
    unread = UNREAD.rows()
    for source, ranks in sorted(snapshot.usage_unread.items()):
        unread.add((source,), ranks)
    yield unread.metric
    yield NODE_TIME.single(snapshot.taken_seconds)


def _ranks(ranks: tuple[RankView, ...]) -> Iterable[Metric]:
    up, state, start, left = RANK_UP.rows(), RANK_STATE.rows(), RANK_START.rows(), RANK_EXIT.rows()
    info, source, progress = RANK_INFO.rows(), RANK_IDENTITY_SOURCE.rows(), RANK_PROGRESS.rows()
    ended = RANK_EXIT_INFO.rows()
    for view in ranks:
        process, label = view.process, view.label
        runs = process.exited_at is None
        source.add((*label, process.source, job_owners.proof_of(process)), 1.0)
        up.add(label, float(runs))
        state.add((*label, state_of(process)), 1.0)
        if process.facts is not None:
            start.add(label, process.facts.start_seconds)
        if process.progress_seconds is not None:
            progress.add(label, process.progress_seconds)
        if runs:
            info.add(_info(view), 1.0)
        else:
            left.add(label, process.exited_seconds)
            ended.add((*label, *ending(process.exit)), 1.0)
    return [rows.metric for rows in (up, state, info, start, left, ended, progress, source)]


def _info(view: RankView) -> tuple[str, ...]:
    facts = view.process.facts
    local_rank = view.process.local_rank if len(view.process.slots or ()) == 1 else str(view.slot)
    pid, user, pod, container = ("", "", "", "")
    if facts is not None:
        pid, user, pod, container = str(facts.key.pid), facts.user, facts.pod, facts.container
    gpus = view.gpus()
    gpu, uuid, pci, nic = (
        ",".join(words)
        for words in (
            [str(each.index) for each in gpus],
            [each.uuid for each in gpus],
            [each.pci for each in gpus],
            dict.fromkeys(each.nic for each in gpus if each.nic),
        )
    )
    return (*view.label, local_rank, gpu, uuid, pci, nic, pid, user, pod, container)
