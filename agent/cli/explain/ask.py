"""Asks Prometheus for a job and its course over a range: a few series for each, however many ranks it has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from agent.cli.explain import incident
from agent.cli.explain.model import Course, Happened, HeldGpus, Kind, KnownJob, Span
from agent.cli.job.facts import quoted
from agent.core.prometheus import Line, Sample
from agent.page.describe import how_ended
from agent.page.document import RankEnd

MAX_HOURS = 24 * 7
DEFAULT_HOURS = 24
MAX_POINTS = 6000
"""Of a series in a range query; Prometheus refuses more than 11,000."""
STEP_SECONDS = 5.0
"""How often the rules of liveness are evaluated; a multiple of it where the range is long."""
BEFORE_START_SECONDS = 60.0
OLDEST_SECONDS = 900.0
"""A time that was seen first so long after it is believed, an older one is a clock's mistake."""
OOM_ORDER_SECONDS, CRASH_ORDER_SECONDS = 60.0, 0.1
"""What the rules subtract from the end of a rank that was killed for lack of memory, or crashed, to order ends."""
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})


class Ask(Protocol):
    """Asks one Prometheus; errors as those of ``prometheus.get``."""

    def at(self, expression: str, at_seconds: float) -> list[Sample]:
        """The result of an expression at a time."""

    def over(self, expression: str, start_seconds: float, end_seconds: float, step_seconds: float) -> list[Line]:
        """The results over a range."""


def matcher(job_id: str, cluster: str | None) -> str:
    """The labels of the job, for an expression."""
    return f"job_id={quoted(job_id)}" + ("" if cluster is None else f", cluster={quoted(cluster)}")


def job(ask: Ask, job_id: str, cluster: str | None, end: float, seconds: float) -> KnownJob:
    """Who the job is. Where several clusters have one of this id and none is chosen: their names alone."""
    back = f"[{math.ceil(seconds)}s]"
    every, chosen = matcher(job_id, None), matcher(job_id, cluster)
    by_rules = ask.at(f"count by (cluster) (last_over_time(job_state:rankwatch_ranks:count{{{every}}}{back}))", end)
    known = by_rules or ask.at(f"count by (cluster) (last_over_time(rankwatch_job_ranks{{{every}}}{back}))", end)
    names = sorted({each.labels.get("cluster", "") for each in known})
    if cluster is not None:
        names = [name for name in names if name == cluster]
    if len(names) != 1:
        return KnownJob(job_id, tuple(names))
    nodes: dict[str, set[str]] = {}
    seen = f"last_over_time(job_node:rankwatch_ranks_seen:bool{{{every}}}{back})"
    for each in ask.at(f"group by (cluster, node) ({seen})", end):
        nodes.setdefault(each.labels.get("cluster", ""), set()).add(each.labels.get("node", ""))
    here = nodes.pop(names[0], set())
    elsewhere = frozenset().union(*nodes.values()) - here
    info = ask.at(f"topk(1, last_over_time(rankwatch_job_info{{{chosen}}}{back}))", end)
    ranks = ask.at(f"max(max_over_time(job:rankwatch_ranks_expected:max{{{chosen}}}{back}))", end)
    started = ask.at(f"min(min_over_time(job:rankwatch_running_since:seconds{{{chosen}}}{back}))", end)
    clocks = ask.at(
        f"last_over_time(node:rankwatch_clock_offset:seconds{back}) and on (cluster, node) "
        f"last_over_time(job_node:rankwatch_ranks_seen:bool{{{chosen}}}{back})",
        end,
    )
    return KnownJob(
        job_id,
        tuple(names),
        bool(by_rules),
        info[0].labels if info else {},
        int(ranks[0].value) if ranks else None,
        tuple(sorted(here)),
        elsewhere,
        started[0].value if started else None,
        {each.labels.get("node", ""): each.value for each in clocks},
    )


def course(ask: Ask, labels: str, start: float, end: float) -> Course:
    """How the job of these labels went from ``start`` to ``end`` (s since the epoch)."""
    step = STEP_SECONDS * max(1, math.ceil((end - start) / MAX_POINTS / STEP_SECONDS))
    # Asked for twice, an hour later or now, what was at a time is the same: the steps are the clock's.
    begin, last = math.floor(start / step) * step, math.floor(end / step) * step

    def over(expression: str) -> list[Line]:
        return ask.over(expression, begin, last, step)

    def points(expression: str) -> tuple[tuple[float, float], ...]:
        return next((line.points for line in over(expression)), ())

    deaths = [
        *_deaths(over(f"job:rankwatch_death:seconds{{{labels}}}"), step, "first to go"),
        *_deaths(over(f"job:rankwatch_all_killed:seconds{{{labels}}}"), step, "first of all ranks, which were killed"),
    ]
    lines = _log(over(f"job:rankwatch_log_root:seconds{{{labels}}}"))
    late = points(f"max(comm_rank:rankwatch_straggles:ratio{{{labels}}})")
    silent = [f"max(job:rankwatch_{what}:seconds{{{labels}}})" for what in ("stalled", "communicators_stalled")]
    running = _timestamps(points(f"max(job:rankwatch_running_since:seconds{{{labels}}})"))
    spans = [
        *(span for span, _ in deaths),
        *(span for span, _ in lines),
        *(Span("late", first, last) for first, last in incident.spans(late, step)),
        *_held("hardware", points(f"count(rank:rankwatch_struck:seconds{{{labels}}})"), step),
        *_held("node_lost", points(f"max(job:rankwatch_node_lost:count{{{labels}}})"), step),
        *_since("unresponsive", points(f"max(job:rankwatch_unresponsive_since:seconds{{{labels}}})"), step),
        *(span for each in silent for span in _silent(points(each), step, start)),
    ]
    saved = points(f"max(rankwatch_train_checkpoint_last_success_timestamp_seconds{{{labels}}})")
    return Course(
        begin,
        last,
        step,
        tuple(spans),
        (*(happened for _, happened in (*deaths, *lines)), *_started(running, step)),
        tuple(span.start for span, _ in deaths),
        _timestamps(points(f"max(job:rankwatch_progress:seconds{{{labels}}})")),
        running,
        late,
        tuple(HeldGpus(at, step, count) for at, count in points(f"max(job:rankwatch_gpus:count{{{labels}}})")),
        tuple(sorted({value for _, value in _timestamps(saved)})),
    )


def ended(labels: Mapping[str, str]) -> str:
    """How a rank ended, by the labels reason, signal and code."""
    code = labels.get("code", "")
    known = RankEnd(
        0.0, labels.get("reason", "unknown"), labels.get("signal", ""), int(code) if code.isdecimal() else None
    )
    return how_ended(known)


def end_time(labels: Mapping[str, str], ordered: float) -> float:
    """When a rank ended, by the rules' value for the order of ends."""
    if labels.get("reason") == "oom_killed":
        return ordered + OOM_ORDER_SECONDS
    return ordered + CRASH_ORDER_SECONDS if labels.get("signal", "") in _CRASHES else ordered


def believed(told: float, seen: float) -> float:
    """``told``, unless a wrong clock said it: then ``seen``, when Prometheus saw it first."""
    return told if seen - OLDEST_SECONDS <= told <= seen else seen


def _timestamps(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Points that are times: none is later than it was seen."""
    return tuple((at, min(value, at)) for at, value in points)


def _started(running: tuple[tuple[float, float], ...], step: float) -> list[Happened]:
    """When all ranks that run were started anew: after the others were last seen to run."""
    return [
        Happened(value, "back", "", "", "all ranks are started anew", "verdict")
        for (before, old), (_, value) in itertools.pairwise(running)
        if value != old and value > before - step
    ]


def _deaths(lines: Iterable[Line], step: float, which: str) -> list[tuple[Span, Happened]]:
    found: dict[tuple[str, str, int], tuple[Span, Happened]] = {}
    for line in lines:
        rank, node = line.labels.get("rank", ""), line.labels.get("node", "")
        for at, value in line.points:
            key = (rank, node, round(value))
            if key in found:
                span, happened = found[key]
                found[key] = (span._replace(end=at), happened)
                continue
            when = believed(end_time(line.labels, value), at + step)
            said = f"{ended(line.labels)}: {which}"
            found[key] = (Span("died", when, at), Happened(when, "died", rank, node, said, "verdict"))
    return list(found.values())


def _log(lines: Iterable[Line]) -> list[tuple[Span, Happened]]:
    found = []
    for line in lines:
        told: set[float] = set()
        for at, value in line.points:
            if value in told:
                continue
            told.add(value)
            when = believed(value, at)
            what = f"its log: {line.labels.get('category', '').replace('_', ' ')}"
            rank, node = line.labels.get("rank", ""), line.labels.get("host", "")
            found.append((Span("log", when, when), Happened(when, "log", rank, node, what, "job_log")))
    return found


def _held(kind: Kind, points: tuple[tuple[float, float], ...], step: float) -> list[Span]:
    return [Span(kind, first, last) for first, last in incident.spans(points, step)]


def _since(kind: Kind, points: tuple[tuple[float, float], ...], step: float) -> list[Span]:
    """Spans whose start their own value says."""
    told = dict(points)
    return [Span(kind, believed(told[first], first), last) for first, last in incident.spans(points, step)]


def _silent(points: tuple[tuple[float, float], ...], step: float, start: float) -> list[Span]:
    """Spans of a silence, whose length their values are."""
    told = dict(points)
    return [Span("silent", max(first - told[first], start), last) for first, last in incident.spans(points, step)]
