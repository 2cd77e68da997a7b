"""Render the rank table as metric families for people and dashboards: ranks, jobs, communicators. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

from agent.core.identity import Membership
from agent.core.metrics import Family, Metric, declared
from agent.ranks.liveness_families import by_job, expected_ranks
from agent.ranks.rank.exit_status import ending
from agent.ranks.rank.process import RankProcess
from agent.ranks.snapshot import RankSnapshot, RankView

_RANK = ("job_id", "rank")

# fmt: off
RANK_UP = Family("rankwatch_rank_up", "gauge",
    "1 while the rank's process runs on this node, 0 after its exit until its record expires.",
    _RANK, "1 per rank", "max")
RANK_STATE = Family("rankwatch_rank_state", "gauge",
    "State of the rank, judged from its process, records and RAS: alive, unresponsive, exited, dead, finished or "
    "unknown; always 1. Only the current state has a series.",
    (*_RANK, "state"), "1 per rank", "max")
RANK_INFO = Family("rankwatch_rank_info", "gauge",
    "Facts about a live rank, to be joined on job_id and rank; always 1. An empty label is unknown. Commas "
    "separate several GPUs of a rank.",
    (*_RANK, "local_rank", "gpu", "gpu_uuid", "pci", "nic", "pid", "user", "pod", "container"),
    "1 per live rank")
RANK_START = Family("rankwatch_rank_start_timestamp_seconds", "gauge",
    "When the rank's process started. A new value means that the rank was restarted.",
    _RANK, "1 per rank", "max")
RANK_EXIT = Family("rankwatch_rank_exit_timestamp_seconds", "gauge",
    "When the agent found that the rank's process had exited; absent while it runs.",
    _RANK, "1 per rank that left", "max")
RANK_EXIT_INFO = Family("rankwatch_rank_exit_info", "gauge",
    "How the rank's process ended; always 1. reason: exited, signaled, oom_killed (by the kernel or systemd-oomd) or "
    "unknown; signal and code are empty where they do not apply.",
    (*_RANK, "reason", "signal", "code"), "1 per rank that left")
RANK_PROGRESS = Family("rankwatch_rank_last_progress_timestamp_seconds", "gauge",
    "When the rank last completed an operation, from its records; absent without records.",
    _RANK, "1 per rank with records", "max")
IDENTITY_PROBLEMS = Family("rankwatch_rank_identity_problems", "gauge",
    "Live rank processes by problem. duplicate: not exported, because another live process has their job_id and rank. "
    "unreadable: the agent may not read their environment (for jobs of other users it needs CAP_SYS_PTRACE). "
    "unidentified: no environment and no record names their rank.",
    ("problem",), "3 per node", "sum")
RANKS_REFUSED = Family("rankwatch_rank_table_refused_total", "counter",
    "Processes, writers of records and memberships in communicators refused at a limit of the rank table or a process.",
    aggregate="sum")

NODE_TIME = Family("rankwatch_node_time_seconds", "gauge",
    "Time on the node's clock at this scrape. This value minus timestamp() of the series is how far the node's clock "
    "is ahead of Prometheus: subtract the difference from the node's exit and start times.")
JOB_RANKS = Family("rankwatch_job_ranks", "gauge",
    "Ranks of the job on this node, by state; states without ranks have no series.",
    ("job_id", "state"), "1 to 6 per job", "sum")
JOB_INFO = Family("rankwatch_job_info", "gauge",
    "Facts about a job with live ranks on this node, from its environment; always 1. scheduler_cluster is Slurm's name "
    "of the cluster. restarts is the number of requeues (Slurm) or restarts (torchrun, JobSet).",
    ("job_id", "user", "name", "world_size", "partition", "scheduler_cluster", "nodes", "restarts"),
    "1 per job", "max")
COMMUNICATOR_INFO = Family("rankwatch_communicator_info", "gauge",
    "A communicator with ranks on this node; always 1. ranks is the number of its ranks, nodes is NCCL's count of "
    "NVLink domains.",
    ("job_id", "comm", "comm_name", "ranks", "nodes"), "1 per communicator", "max")
COMMUNICATOR_MEMBER = Family("rankwatch_communicator_member_info", "gauge",
    "Maps a communicator's rank (comm, comm_rank) to the rank in the job; always 1.",
    ("job_id", "comm", "comm_rank", "rank"), "1 per rank and communicator", "max")
# fmt: on

FAMILIES = declared(globals())


def families(snapshot: RankSnapshot) -> Iterable[Metric]:
    """Render the rank table."""
    yield from _ranks(snapshot.ranks)
    yield from _jobs(snapshot.ranks)
    yield from _communicators(snapshot.ranks)
    problems = IDENTITY_PROBLEMS.rows()
    problems.add(("duplicate",), snapshot.duplicates)
    problems.add(("unidentified",), snapshot.unidentified)
    problems.add(("unreadable",), snapshot.unreadable)
    yield problems.metric
    yield RANKS_REFUSED.single(snapshot.refused)
    yield NODE_TIME.single(snapshot.taken_seconds)


def _ranks(ranks: tuple[RankView, ...]) -> Iterable[Metric]:
    up, state, start, exits = RANK_UP.rows(), RANK_STATE.rows(), RANK_START.rows(), RANK_EXIT.rows()
    info, progress, ended = RANK_INFO.rows(), RANK_PROGRESS.rows(), RANK_EXIT_INFO.rows()
    for view in ranks:
        process, label = view.process, view.label
        runs = process.exited_at is None
        up.add(label, float(runs))
        state.add((*label, process.shown_state), 1.0)
        start.add(label, process.facts.start_seconds)
        if process.progress_seconds is not None:
            progress.add(label, process.progress_seconds)
        if runs:
            info.add(_info(view), 1.0)
        else:
            exits.add(label, process.exited_seconds)
            ended.add((*label, *ending(process.exit)), 1.0)
    return [rows.metric for rows in (up, state, info, start, exits, ended, progress)]


def _info(view: RankView) -> tuple[str, ...]:
    facts = view.process.facts
    local_rank = view.process.local_rank if len(view.process.slots or ()) == 1 else str(view.slot)
    gpus = view.gpus()
    nics = dict.fromkeys(gpu.nic for gpu in gpus if gpu.nic)
    names = ([str(gpu.index) for gpu in gpus], [gpu.uuid for gpu in gpus], [gpu.pci for gpu in gpus], nics)
    hardware = map(",".join, names)
    return (*view.label, local_rank, *hardware, str(view.pid), facts.user, facts.pod, facts.container)


def _jobs(ranks: Sequence[RankView]) -> Iterable[Metric]:
    by_state, info = JOB_RANKS.rows(), JOB_INFO.rows()
    for job_id, members in by_job(ranks).items():
        for name, count in sorted(Counter(process.shown_state for process in members).items()):
            by_state.add((job_id, name), count)
        live = [p for p in members if p.exited_at is None]
        if not live:
            continue
        size = str(next(iter(expected_ranks(live).values()), ""))
        scheduled = (_first_claimed(live, name) for name in ("partition", "cluster", "nodes", "restarts"))
        info.add((job_id, live[0].facts.user, _first_claimed(live, "job_name"), size, *scheduled), 1.0)
    return [by_state.metric, info.metric]


def _first_claimed(live: Sequence[RankProcess], name: str) -> str:
    """Return field ``name`` of the first process whose environment sets it; empty without such a process."""
    return next(filter(None, (getattr(process.claim, name) for process in live)), "")


def _communicators(ranks: Sequence[RankView]) -> Iterable[Metric]:
    info, members = COMMUNICATOR_INFO.rows(), COMMUNICATOR_MEMBER.rows()
    communicators: dict[tuple[str, str], Membership] = {}
    rank_of: dict[tuple[str, str, str], str] = {}
    for view in ranks:
        for m in view.memberships() if view.process.exited_at is None else ():
            communicators.setdefault((view.label.job_id, m.comm), m)
            rank_of.setdefault((view.label.job_id, m.comm, str(m.comm_rank)), view.label.rank)
    for (job_id, comm), m in communicators.items():
        info.add((job_id, comm, m.name, str(m.size), str(m.nodes)), 1.0)
    for member, rank in rank_of.items():
        members.add((*member, rank), 1.0)
    return [info.metric, members.metric]
