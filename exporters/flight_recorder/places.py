"""Finds ranks that can have a dump, the dump's possible paths, and a process that sees these paths. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.sdk.ranks import Pauses, ProcessFacts, ProcessKey, RankLabel, RankView
from exporters.flight_recorder.pipe import PipeRequest

NAMED_BY = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the path prefix of dumps; the rank number follows. The first variable that is set is used."""
CACHE, HOME = "XDG_CACHE_HOME", "HOME"
VARIABLES = frozenset({*NAMED_BY, CACHE, HOME})
SYSTEMS_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108  # PyTorch's own name
JOB_ID = "%j"
BUSY_SECONDS = 30.0  # A rank that completed an operation this recently does not hang: the exporter ignores its dump
AFTER_EXIT_SECONDS = 120.0
"""A rank writes its dump before it exits. The search for the dump ends this long after the exit."""
MAX_RANK_DIGITS = 7


def is_looked_at(view: RankView, now: float) -> bool:
    """Return True if a rank with known number and user can have a new dump. ``now``: seconds since the epoch."""
    process = view.process
    if process.facts.uid is None or not is_number(view.label.rank):
        return False
    if process.exited_at is not None:
        return now - process.exited_seconds <= AFTER_EXIT_SECONDS
    return process.progress_seconds is None or now - process.progress_seconds > BUSY_SECONDS


def is_number(rank: str) -> bool:
    """Return whether a rank label is a number."""
    return rank.isascii() and rank.isdecimal() and len(rank) <= MAX_RANK_DIGITS


def paths_of(facts: ProcessFacts, rank: str, job_id: str, prefixes: Sequence[str]) -> list[str]:
    """Return absolute paths of a rank's dump: from its environment, else PyTorch's defaults; plus ``prefixes``."""
    environment = facts.environment or {}
    named = next((environment[name] for name in NAMED_BY if environment.get(name)), "")
    path_prefixes = [_absolute(named, facts.directory)] if named else _defaults(environment)
    path_prefixes += [prefix.replace(JOB_ID, job_id) for prefix in prefixes if JOB_ID not in prefix or _is_name(job_id)]
    return [f"{prefix}{rank}" for prefix in dict.fromkeys(path_prefixes) if prefix]


def _absolute(path: str, directory: str) -> str:
    if path.startswith("/"):
        return path
    return f"{directory}/{path}" if directory else ""


def _defaults(environment: Mapping[str, str]) -> list[str]:
    """Return the default prefixes of all PyTorch versions, the newest version first."""
    home = environment.get(HOME, "")
    caches = [environment.get(CACHE, ""), f"{home}/.cache" if home else ""]
    cache = next((cache_path for cache_path in caches if cache_path.startswith("/")), "")
    cache_prefixes = [f"{cache}/torch/comm_lib_trace_rank_", f"{cache}/torch/nccl_trace_rank_"] if cache else []
    return [*cache_prefixes, SYSTEMS_PREFIX]


def _is_name(job_id: str) -> bool:
    """Return whether a job id, which the job may choose, is a single path component."""
    return "/" not in job_id and "\0" not in job_id and job_id not in ("", ".", "..")


def reached_by(views: Iterable[RankView]) -> dict[RankLabel, int]:
    """Return for each rank the pid of a process that sees the rank's files: the rank while it runs, else another rank
    of the job, else the launcher.

    Processes of one job on a node usually share their file systems. The launcher usually outlives its ranks.
    """
    known = [(view, facts) for view in views if (facts := view.process.facts).uid is not None]
    pids = {view.label: facts.key.pid for view, facts in known if view.process.exited_at is None}
    alive = {(view.label.job_id, facts.uid): facts.key.pid for view, facts in known if view.label in pids}
    for view, facts in known:
        if view.label not in pids:
            pids[view.label] = alive.get((view.label.job_id, facts.uid), facts.parent_pid)
    return pids


PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
AGAIN_SECONDS = 600.0
MAX_ASKED = 64  # Limit of ranks per search. The next searches take the other ranks


class DumpAsker:
    """Remembers each rank's pauses between operations. ``silence_seconds``: as configured; ``asked``: the time of each
    rank's last request (monotonic), which the caller notes."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._pauses: dict[ProcessKey, Pauses] = {}
        self.asked: dict[ProcessKey, float] = {}

    def due(self, views: Iterable[RankView], proc: str, now: float, monotonic: float) -> dict[ProcessKey, PipeRequest]:
        """Return the requests due now: for silent ranks (``now``: epoch) not ``asked`` in the last AGAIN_SECONDS."""
        self.asked = {key: at for key, at in self.asked.items() if monotonic - at < AGAIN_SECONDS}
        known: dict[ProcessKey, Pauses] = {}
        requests: dict[ProcessKey, PipeRequest] = {}
        for view in views:
            facts = view.process.facts
            if facts.uid is None or view.process.exited_at is not None or facts.key in known:
                continue
            pauses = known[facts.key] = self._pauses.get(facts.key) or Pauses()
            since = pauses.silent_since(view.process.progress_seconds, now, self._silence_seconds)
            prefix = (facts.environment or {}).get(PIPE_VARIABLE, "")
            if since is None or facts.key in self.asked or not prefix.startswith("/") or len(requests) >= MAX_ASKED:
                continue
            if is_number(view.label.rank):
                path = f"{prefix}{view.label.rank}.pipe"
                requests[facts.key] = PipeRequest(path, proc, facts.key.pid, facts.uid)
        self._pauses = known
        return requests
