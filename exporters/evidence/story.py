"""The texts of a bundle: its summary (ranks, statements about ranks, suspects, time line) and its rank table. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.sdk.evidence import summary
from agent.sdk.ranks import UNRESPONSIVE, RankView, ending, in_words
from exporters.evidence.watch import Change, Occasion

NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"),
        *("SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_RESTART_COUNT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "OMP_NUM_THREADS"),
        *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_HCA", "NCCL_IB_DISABLE"),
        *("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL"),
        *("NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_CROSS_NIC", "NCCL_SOCKET_IFNAME"),
        *("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        *("NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_BUFFSIZE"),
        *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_LAUNCH_MODE", "NCCL_COMM_BLOCKING"),
        *("NCCL_RAS_ENABLE", "NCCL_RAS_ADDR", "NCCL_TOPO_FILE", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"),
        *("NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR", "NCCL_INSPECTOR_DUMP_VERBOSE"),
        *("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "NCCL_INSPECTOR_PROM_DUMP"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        *("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        *("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL"),
    }
)
"""The only environment variables of a rank that a bundle may hold."""
COMPLETED = "last completed "  # The beginning of Inspector's statement about a rank's last operation


def of_rank(view: RankView, now_seconds: float, words: Iterable[summary.Word]) -> summary.RankAtTime:
    """Return a rank for the summary; its last operation comes from Inspector's statements in ``words``."""
    said = (word.says for word in words if (word.rank, word.witness) == (view.label.rank, "records"))
    last = next((says for says in said if says.startswith(COMPLETED)), "")
    process = view.process
    state = "unknown" if process.verdict is None else process.verdict.state
    since = process.exited_seconds if process.exited_at is not None else 0.0
    quiet = None if process.progress_seconds is None else max(0.0, now_seconds - process.progress_seconds)
    return summary.RankAtTime(
        rank=view.label.rank[: summary.MAX_TEXT],
        pid=process.key.pid,
        state=state,
        since=since,
        how=how_ended(view),
        gpu=" ".join(f"{gpu.index} {gpu.uuid}".strip() for gpu in view.gpus())[: summary.MAX_TEXT],
        quiet_seconds=quiet,
        last_operation=last,
    )


def how_ended(view: RankView) -> str:
    """Return how a rank's process ended, in words; empty while it runs."""
    process = view.process
    if process.exited_at is None:
        return ""
    return in_words(*ending(process.exit))


def verdict_words(views: Iterable[RankView]) -> list[summary.Word]:
    """Return the verdicts' statements, which blame the dead and unresponsive ranks."""
    words = []
    for view in views:
        verdict = view.process.verdict
        if verdict is not None and verdict.state in ("dead", "unresponsive"):
            says = how_ended(view) or UNRESPONSIVE.get(verdict.reason, "unresponsive")
            words.append(summary.Word(view.label.rank, "verdict", says, blames=True))
    return words


def suspects(words: Sequence[summary.Word], left_at: Mapping[str, float]) -> list[str]:
    """Return the blamed ranks: by number of witnesses, the most first, then by time of exit (``left_at``, epoch)."""
    blames = Counter(word.rank for word in {(word.rank, word.witness): word for word in words if word.blames}.values())
    never = float("inf")
    return sorted(blames, key=lambda rank: (-blames[rank], left_at.get(rank, never), len(rank), rank))


def time_line(
    views: Iterable[RankView], changes: Iterable[Change], events: Iterable[summary.Event]
) -> list[summary.Event]:
    """Return all events in order of time: exits, changes of state, and the parts' events."""
    line = [
        summary.Event(view.process.exited_seconds, view.label.rank, how_ended(view), "process")
        for view in views
        if view.process.exited_at is not None
    ]
    line += [
        summary.Event(
            change.at, change.rank, f"{change.state}, {UNRESPONSIVE.get(change.reason, '')}".rstrip(", "), "verdict"
        )
        for change in changes
        if change.state != "alive"
    ]
    return sorted((*line, *events), key=lambda event: (event.at, event.rank))[-summary.MAX_LISTED :]


def live_pids(views: Iterable[RankView]) -> dict[str, int]:
    """Return the live processes' pids by rank, first those whose verdict is not `alive`."""
    live = [view for view in views if view.process.exited_at is None]
    live.sort(key=lambda view: view.process.verdict is None or view.process.verdict.state == "alive")
    return {view.label.rank: view.process.key.pid for view in live}


def because(occasion: Occasion) -> str:
    """Return in words why a bundle is taken."""
    words = {
        "dead": f"rank {occasion.rank} is dead",
        "unresponsive": f"rank {occasion.rank} does not respond",
        "hardware": f"hardware has failed under rank {occasion.rank}",
        "silent": f"rank {occasion.rank} completes no operation any more",
        "stalled": "RAS reports that it stands still",
        "asked": "it was requested",
    }
    return words[occasion.trigger][: summary.MAX_TEXT]


def ranks_file(views: Iterable[RankView]) -> bytes:
    """Return the rank table's facts about the job's ranks as JSON, with the variables in NAMES."""
    return msgspec.json.format(msgspec.json.encode([_facts(view) for view in views])) + b"\n"


def _facts(view: RankView) -> dict[str, object]:
    process = view.process
    facts, verdict = process.facts, process.verdict
    environment = facts.environment or {}
    return {
        "rank": view.label.rank,
        "named_by": process.source,
        "pid": facts.key.pid,
        "user": facts.user,
        "control_group": facts.cgroup,
        "pod": facts.pod,
        "container": facts.container,
        "started": facts.start_seconds,
        "state": None if verdict is None else verdict.state,
        "verdict": None if verdict is None else verdict.reason,
        "process_state": process.state,
        "ended": None if process.exited_at is None else process.exited_seconds,
        "how": how_ended(view),
        "last_progress": process.progress_seconds,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, "nic": gpu.nic} for gpu in view.gpus()],
        "communicators": [
            {"comm": membership.comm, "name": membership.name, "rank": membership.comm_rank, "ranks": membership.size}
            for membership in process.members.values()
        ],
        "environment": {name: environment[name] for name in sorted(NAMES & environment.keys())},
    }


def user_of(views: Iterable[RankView]) -> str:
    """Return the user of a job with these ranks; empty when unknown."""
    return next((view.process.user for view in views), "")


def share_of(views: Iterable[RankView]) -> str:
    """Return the owner (container or user) whose share of bounded tables the job uses; empty when unknown."""
    return next((view.process.share for view in views), "")
