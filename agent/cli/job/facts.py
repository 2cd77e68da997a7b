"""Gather a job's facts from Prometheus: its ranks on all nodes, its late ranks with the reason, and its alerts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.core.prometheus import NOT_PROMETHEUS, Sample
from agent.page.ranks_json import RankEnd

Ask = Callable[[str], list[Sample]]
"""Function that returns the result of a PromQL expression."""

MAX_LISTED = 10
MEMORY = "1h"
STEP = "15s"
"""MEMORY: range of the search for ranks that are no longer exported. STEP: step of this range, the scrape interval."""

RECENT_SECONDS = 60.0  # The rules' bandwidth is shown if a live rank has completed an operation within this time
UNSEEN = "unseen"
"""State of a rank that no agent exports now, though an agent exported it within MEMORY."""


class RankKey(NamedTuple):
    """One rank on one node."""

    node: str
    rank: str


class JobRank(NamedTuple):
    """A rank of the job.

    ``state``: as in docs/metrics.md, or UNSEEN. ``late_share``: share (0 to 1) of time that other ranks waited for it.
    """

    node: str
    rank: str
    state: str
    pid: str = ""
    user: str = ""
    gpus: str = ""
    progress_seconds: float | None = None
    ended: RankEnd | None = None
    late_share: float | None = None
    why: tuple[str, ...] = ()


class FiringAlert(NamedTuple):
    """A firing alert of the job."""

    name: str
    severity: str
    rank: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All facts.

    ``clusters``: clusters with a job of this id. ``has_rules``: the shipped rules have series of the job.
    """

    job_id: str
    now_seconds: float
    clusters: tuple[str, ...] = ()
    has_rules: bool = False
    ranks: tuple[JobRank, ...] = ()
    expected: int | None = None
    info: Mapping[str, str] | None = None
    bus_bandwidth_bytes_per_second: float | None = None
    alerts: tuple[FiringAlert, ...] = ()


def facts_from(ask: Ask, job_id: str, cluster: str | None) -> JobFacts:
    """Return the job's facts; if several clusters have such a job, only the clusters' names. ``cluster`` None: any."""
    job = matcher(job_id, cluster)
    if not (now := ask("vector(time())")):
        raise ValueError(NOT_PROMETHEUS)
    # A rank can have series of several nodes. Series of ended ranks are used only if no series shows the rank alive.
    live = f'rankwatch_rank_state{{{job}, state=~"alive|unresponsive"}}'
    shown = ask(f"{live} or on (cluster, job_id, rank) rankwatch_rank_state{{{job}}}")
    has_rules = bool(ask(f"job:rankwatch_ranks_live:sum{{{job}}}"))
    info = f"rankwatch_rank_info{{{job}}}"
    # The time when each rank was last seen; 0 if no step of the range saw it.
    seen = ask(f"max_over_time(timestamp({info})[{MEMORY}:{STEP}]) or 0 * last_over_time({info}[{MEMORY}])")
    clusters = tuple(sorted({sample.labels.get("cluster", "") for sample in (*shown, *seen)}))
    if len(clusters) > 1:
        return JobFacts(job_id, now[0].value, clusters)
    of_job = ask(f"rankwatch_job_info{{{job}}} or rankwatch_job_allocation_info{{{job}}}")
    whole = ask(f"job:rankwatch_ranks_expected:max{{{job}}} or max(rankwatch_job_expected_ranks{{{job}}})")
    speed = ask(
        f"sum(comm_collective:rankwatch_bus_bytes:rate5m{{{job}}})"
        f" / (sum(comm_collective:rankwatch_bus_seconds:rate5m{{{job}}}) > 0)"
    )
    ranks = _ranks(ask, job, shown, seen)
    at = max((rank.progress_seconds or 0.0 for rank in ranks if rank.state == "alive"), default=0.0)
    return JobFacts(
        job_id,
        now[0].value,
        clusters,
        has_rules,
        ranks,
        int(whole[0].value) if whole else None,
        of_job[0].labels if of_job else None,
        speed[0].value if speed and now[0].value - at <= RECENT_SECONDS else None,
        _alerts(ask(f'ALERTS{{{job}, alertstate="firing"}}')),
    )


def known_jobs(ask: Ask, span: str) -> str:
    """Return the ids of at most MAX_LISTED jobs with data in ``span``; if there is none, a remedy."""
    jobs = ask(f"topk({MAX_LISTED}, group by (job_id) (last_over_time(rankwatch_job_ranks[{span}])))")
    none = "none (rankwatch doctor --prometheus URL checks the scrapes)"
    return ", ".join(sorted(sample.labels.get("job_id", "") for sample in jobs)) or none


def matcher(job_id: str, cluster: str | None) -> str:
    """Return the label matchers of the job for PromQL."""
    return f"job_id={quoted(job_id)}" + ("" if cluster is None else f", cluster={quoted(cluster)}")


def quoted(value: str) -> str:
    """Return ``value`` as a PromQL string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _ranks(ask: Ask, job: str, shown: Iterable[Sample], seen: Iterable[Sample]) -> tuple[JobRank, ...]:
    states = {_key(sample): sample.labels.get("state", "") for sample in shown}
    known = {rank for _, rank in states}
    facts: dict[RankKey, Sample] = {}
    gpus: dict[tuple[RankKey, str], set[str]] = {}
    for sample in sorted(seen, key=lambda sample: sample.value):
        facts[_key(sample)] = sample
        gpus.setdefault((_key(sample), sample.labels.get("pid", "")), set()).add(sample.labels.get("gpu", ""))
        if sample.labels.get("rank", "") not in known:
            states.setdefault(_key(sample), UNSEEN)

    def by_rank(metric: str) -> dict[RankKey, float]:
        expression = f"max by (node, instance, rank) ({metric}{{{job}}})"
        return {_key(sample): sample.value for sample in ask(expression)}

    at = by_rank("rankwatch_rank_exit_timestamp_seconds")
    at |= by_rank("rank:rankwatch_exit:time")  # in Prometheus' clock
    ends = {_key(sample): sample.labels for sample in ask(f"rankwatch_rank_exit_info{{{job}}}")}
    progress = by_rank("rankwatch_rank_last_progress_timestamp_seconds")
    straggles = f'ALERTS{{{job}, alertname="StragglerRank", alertstate="firing"}}'
    shares = f"max by (rank) (avg_over_time(comm_rank:rankwatch_late:ratio{{{job}}}[3m]) and on (rank) {straggles})"
    late = {sample.labels.get("rank", ""): sample.value for sample in ask(shares)}
    why: dict[RankKey, list[str]] = {}
    for sample in ask(straggles):
        why.setdefault(_key(sample), []).append(sample.labels.get("why", "").replace("_", " "))

    def made(key: RankKey, state: str) -> JobRank:
        labels = facts[key].labels if key in facts else {}
        pid = labels.get("pid", "")
        return JobRank(
            key.node,
            key.rank,
            state,
            pid,
            labels.get("user", ""),
            ",".join(sorted(filter(None, gpus.get((key, pid), ())))),
            progress.get(key),
            rank_end(ends.get(key), at.get(key)),
            late.get(key.rank),
            tuple(sorted(why.get(key, ()))),
        )

    return tuple(made(key, state) for key, state in states.items())


def _key(sample: Sample) -> RankKey:
    labels = sample.labels
    return RankKey(labels.get("node") or labels.get("instance", ""), labels.get("rank", ""))


def rank_end(labels: Mapping[str, str] | None, at_seconds: float | None) -> RankEnd | None:
    """Return a rank's exit from the labels reason, signal and code; None if its time is unknown."""
    if at_seconds is None:
        return None
    known_labels = labels or {}
    code = known_labels.get("code", "")
    return RankEnd(
        at_seconds,
        known_labels.get("reason", "unknown"),
        known_labels.get("signal", ""),
        int(code) if code.isdecimal() else None,
    )


def _alerts(samples: Iterable[Sample]) -> tuple[FiringAlert, ...]:
    names = ("alertname", "severity", "rank", "node")
    return tuple(sorted(FiringAlert(*(sample.labels.get(name, "") for name in names)) for sample in samples))
