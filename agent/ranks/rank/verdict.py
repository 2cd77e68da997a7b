"""Judge the state of a rank from the evidence on its process and on its peers on this node. Pure.

Prometheus' rules judge across nodes: which rank exited first, and whether a rank lives on another node.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate
from signal import SIGKILL

import msgspec

from agent.core.identity import ProcessKey
from agent.ranks.rank.evidence import RankVerdict
from agent.ranks.rank.exit_episodes import ended_by, fatal_reason, killed_before_teardown, left_at_of, preceded
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

UNANSWERED_REPORTS = 2
UNANSWERED_SECONDS = 15.0
"""A process is unanswered if this number of RAS reports over this time omit it. RAS can omit a dead rank's neighbours
for up to 12 s."""
PROGRESS_SLACK_SECONDS = 5.0


class _Job(msgspec.Struct, frozen=True):
    """The processes of a job, indexed so that ``_judge`` compares a process with all other processes in O(log n).

    ``found_at``: when each process was discovered, in ascending order. ``alive_until``: for each index i the latest
    time at which one of the processes 0 to i was known to be alive. ``preceded``: result of the function ``preceded``.
    ``torn_down``: result of ``killed_before_teardown``.
    """

    found_at: Sequence[float]
    alive_until: Sequence[float]
    preceded: Collection[ProcessKey]
    torn_down: Collection[ProcessKey]
    all_left_well: bool
    now: float
    thresholds: Thresholds


def judge_job(processes: Sequence[RankProcess], now: float, thresholds: Thresholds = DEFAULTS) -> list[RankVerdict]:
    """Return a verdict for each rank process, running or ended, of one job on this node at monotonic time ``now``."""
    by_age = sorted(processes, key=lambda p: p.found_at)
    exits = sorted((p for p in processes if p.exited_at is not None), key=lambda p: (left_at_of(p), p.key))
    job = _Job(
        found_at=[p.found_at for p in by_age],
        alive_until=list(accumulate((_alive_until(p, now) for p in by_age), max)),
        preceded=preceded(exits, thresholds),
        torn_down=killed_before_teardown(exits, thresholds),
        all_left_well=all(p.exited_at is not None and p.exit == ExitStatus(known=True) for p in processes),
        now=now,
        thresholds=thresholds,
    )
    return [_judge(p, job) for p in processes]


def _judge(process: RankProcess, job: _Job) -> RankVerdict:
    if process.exited_at is None:
        return _judge_running(process, job)
    if (process.progress_seconds or 0.0) > process.exited_seconds + PROGRESS_SLACK_SECONDS:
        return RankVerdict("unknown", "progress_after_exit")
    if process.finalized:
        return RankVerdict("finished", "finalized")
    if job.all_left_well or process.judged == "all_left_well":
        return RankVerdict("finished", "all_left_well")
    if process.ended_by_scheduler:
        return RankVerdict("finished", "ended_by_scheduler")
    return _judge_left(process, job)


def _judge_running(process: RankProcess, job: _Job) -> RankVerdict:
    if process.state == "T":  # "t" would mean that a debugger stopped the process
        return RankVerdict("unresponsive", "stopped")
    if process.blocked_since is not None and job.now - process.blocked_since > job.thresholds.blocked_seconds:
        return RankVerdict("unresponsive", "blocked")
    silence = process.ras_silence()
    if silence is None or silence.reports < UNANSWERED_REPORTS or job.now - silence.since < UNANSWERED_SECONDS:
        return RankVerdict("alive", "running")
    return RankVerdict("alive", "cut_off") if silence.contradicted else RankVerdict("unresponsive", "unanswered")


def _judge_left(process: RankProcess, job: _Job) -> RankVerdict:
    cause = fatal_reason(process.exit)
    followed = process.judged == "followed" or (cause is not None and process.key in job.preceded)
    if cause is not None and not followed:
        return RankVerdict("dead", cause)
    if process.judged in ("killed_before_teardown", "killed_before_peers", "left_before_peers"):
        return RankVerdict("dead", process.judged)
    if process.key in job.torn_down:
        return RankVerdict("dead", "killed_before_teardown")
    outlived = _outlived_seconds(process, job)
    if ended_by(process, SIGKILL) and outlived >= job.thresholds.killed_behind_seconds:
        return RankVerdict("dead", "killed_before_peers")
    if outlived >= job.thresholds.left_behind_seconds:
        return RankVerdict("dead", "left_before_peers")
    return RankVerdict("exited", "left" if cause is None else "followed")


def _outlived_seconds(process: RankProcess, job: _Job) -> float:
    """Return how long a peer was alive after ``process`` exited; 0 or less if no peer was alive then.

    Only peers discovered before the exit count: a process of a later restart proves nothing. The search includes
    ``process`` itself: this is harmless, as it was not alive after its exit.
    """
    left_at = left_at_of(process)
    peers = bisect_left(job.found_at, left_at)
    return job.alive_until[peers - 1] - left_at if peers else 0.0


def _alive_until(peer: RankProcess, now: float) -> float:
    if peer.unproven_since is not None:
        return peer.unproven_since
    if peer.exited_at is not None:
        return peer.exited_at
    return float("-inf") if peer.kill_pending else now
