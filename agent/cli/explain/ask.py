"""Query Prometheus for a job and its states over a range. The number of series does not grow with the job's ranks."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.cli.explain.model import Course, Happened, Kind, KnownJob, Span
from agent.cli.job.facts import matcher, quoted
from agent.core import prometheus
from agent.core.prometheus import Line, Sample
from agent.ranks.rank.exit_status import in_words

MAX_HOURS = 24 * 7
DEFAULT_HOURS = 24
MAX_POINTS = 6000
"""Limit of points per series in a range query; Prometheus refuses more than 11,000."""
STEP_SECONDS = 5.0
"""Evaluation interval of the liveness rules; long ranges use a multiple of it."""
BEFORE_START_SECONDS = 60.0
OLDEST_SECONDS = 900.0
"""If a timestamp is older than this when Prometheus first sees it, a clock is wrong."""
SAME_SECONDS = 5.0
"""Two times this close together, each computed from an age, belong to one event."""
MAX_DEATHS = 8
"""Limit of deaths per evaluation time; the earliest deaths are kept."""
EPISODE_SECONDS = 60.0
"""Deaths this close together form one episode, which has one first death."""
GOES_ON_SECONDS = 60
"""A job that completes operations this long after the death of a rank continues without this rank."""
WEAK_CATEGORIES = (
    "peer_gpu_memory|ib_retry_exceeded|ib_remote_invalid_request|ib_completion_error|ib_async_event|launcher_failed"
    "|watchdog_exception|watchdog_stuck|ib_call_failed|program_error|restart_refused"
)
"""Log categories that can be a cause or a consequence (`weak` in job_log's categories.yml): they count as causes only
if the log has no other cause."""


class _Rule(msgspec.Struct):
    name: str
    annotations: dict[str, str] = {}


class _Group(msgspec.Struct):
    rules: list[_Rule]


class _Rules(msgspec.Struct):
    groups: list[_Group]


class Ask:
    """Queries the Prometheus at ``url``; raises the errors of ``prometheus.get``."""

    def __init__(self, url: str) -> None:
        self._url = url

    def at(self, expression: str, at_seconds: float) -> list[Sample]:
        """Return the result of an expression at one time (epoch seconds)."""
        return prometheus.samples(self._url, expression, at_seconds)

    def over(self, expression: str, start_seconds: float, end_seconds: float, step_seconds: float) -> list[Line]:
        """Return the results of an expression over a range."""
        return prometheus.lines(self._url, expression, start_seconds, end_seconds, step_seconds)

    def runbooks(self) -> Mapping[str, str]:
        """Return the runbook address of each alert, from the loaded rules."""
        groups = prometheus.get(self._url, "/api/v1/rules", {"type": "alert"}, _Rules).groups
        rules = (rule for group in groups for rule in group.rules)
        return {rule.name: rule.annotations["runbook_url"] for rule in rules if "runbook_url" in rule.annotations}


def job(ask: Ask, job_id: str, cluster: str | None, end: float, seconds: float) -> KnownJob:
    """Return the job's facts; if several clusters have the id and ``cluster`` is None, only the clusters' names."""
    back = f"[{math.ceil(seconds)}s]"
    every, chosen = matcher(job_id, None), matcher(job_id, cluster)
    by_rules = ask.at(f"count by (cluster) (last_over_time(job:rankwatch_ranks_live:sum{{{every}}}{back}))", end)
    known = by_rules or ask.at(f"count by (cluster) (last_over_time(rankwatch_job_ranks{{{every}}}{back}))", end)
    names = sorted({sample.labels.get("cluster", "") for sample in known})
    if cluster is not None:
        names = [name for name in names if name == cluster]
    if len(names) != 1:
        return KnownJob(job_id, tuple(names))
    nodes: dict[str, set[str]] = {}
    seen = "group by (cluster, node) (last_over_time(rankwatch_job_ranks{{{}}}{}))"
    for sample in ask.at(seen.format(every, back), end):
        nodes.setdefault(sample.labels.get("cluster", ""), set()).add(sample.labels.get("node", ""))
    here = nodes.pop(names[0], set())
    elsewhere = frozenset().union(*nodes.values()) - here
    info = ask.at(f"topk(1, last_over_time(rankwatch_job_info{{{chosen}}}{back}))", end)
    ranks = ask.at(f"max(max_over_time(job:rankwatch_ranks_expected:max{{{chosen}}}{back}))", end)
    started = ask.at(f"min(min_over_time(job:rankwatch_run:time{{{chosen}}}{back}))", end)
    ahead = "rankwatch_node_time_seconds - timestamp(rankwatch_node_time_seconds)"
    clocks = ask.at(
        f"round(max by (cluster, node) (quantile_over_time(0.5, ({ahead})[{math.ceil(seconds)}s:5m])), 0.05) != 0 "
        f"and on (cluster, node) {seen.format(chosen, back)}",
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
        {sample.labels.get("node", ""): sample.value for sample in clocks},
    )


def course(ask: Ask, labels: str, start: float, end: float) -> Course:
    """Return the history of the job with these labels from ``start`` to ``end`` (s since the epoch)."""
    step = STEP_SECONDS * max(1, math.ceil((end - start) / MAX_POINTS / STEP_SECONDS))
    # Points are at multiples of the step: a query an hour later has the same points.
    begin, last = math.floor(start / step) * step, math.floor(end / step) * step

    def over(expression: str) -> list[Line]:
        return ask.over(expression, begin, last, step)

    def points(expression: str) -> tuple[tuple[float, float], ...]:
        return next((line.points for line in over(expression)), ())

    deaths = [
        *_deaths(over(_first_deaths(labels)), "first to go"),
        *_deaths(over(_all_killed(labels)), "first of all ranks, which were killed"),
    ]
    lines = _log(over(first_root(labels)))
    late = points(_late(labels))
    hung = f'ALERTS{{{labels}, alertname="CommunicatorStalled", alertstate="firing"}}'
    silent = [
        f"max(job:rankwatch_stalled:seconds{{{labels}}})",
        f"max(job:rankwatch_launch_silence:seconds{{{labels}}} and on (cluster, job_id) {hung})",
    ]
    running = _timestamps(points(f"max(job:rankwatch_run:time{{{labels}}})"))
    spans = [
        *(span for span, _ in deaths),
        *(span for span, _ in lines),
        *_spans("late", late, step),
        *_spans("hardware", points(f"count({struck(labels)})"), step),
        *_spans("node_lost", points(f"min({lost_nodes(labels)})"), step, lambda first, at: believed(at, first)),
        *_spans("unresponsive", points(f"count({UNRESPONSIVE.format(labels)})"), step),
        *(
            span
            for sample in silent
            for span in _spans("silent", points(sample), step, lambda first, long: max(first - long, start))
        ),
    ]
    age = f"rankwatch_job_progress_age_seconds{{{labels}}}"
    saved = points(f"max(rankwatch_train_checkpoint_last_success_timestamp_seconds{{{labels}}})")
    return Course(
        begin,
        last,
        step,
        tuple(spans),
        (*(happened for _, happened in (*deaths, *lines)), *_started(running, step)),
        _timestamps(points(f"max(timestamp({age}) - {age})")),
        running,
        late,
        points(f"max(job:rankwatch_gpus:count{{{labels}}})"),
        tuple(sorted({value for _, value in _timestamps(saved)})),
    )


UNRESPONSIVE = 'rankwatch_rank_state{{{}, state="unresponsive"}}'
"""Selector of unresponsive ranks, without the job's labels."""


def _first_deaths(labels: str) -> str:
    """Return the query for deaths that no other death explains, unless the job continues without the rank."""
    dead = f"rank:rankwatch_dead:time{{{labels}}}"
    worked = f"time() - job:rankwatch_silence:seconds{{{labels}}} - {GOES_ON_SECONDS}"
    goes_on = f"{dead} < on (cluster, job_id) group_left () ({worked})"
    return f"bottomk({MAX_DEATHS}, {dead} unless on (cluster, job_id, rank, node) ({goes_on}))"


def _all_killed(labels: str) -> str:
    """Return the query for exits by SIGKILL in a job that has neither live ranks nor another explanation of its end."""
    others = f'rank:rankwatch_exit:time{{{labels}, class!="killed"}}'
    explained = (f"job:rankwatch_ranks_live:sum{{{labels}}} > 0", others, f"job:rankwatch_ended:time{{{labels}}}")
    return (
        f'rank:rankwatch_exit:time{{{labels}, class="killed"}} unless on (cluster, job_id) ({" or ".join(explained)})'
    )


def _late(labels: str) -> str:
    """Return the query for the share of time that the job waits for its latest rank, while that rank is a straggler."""
    late = f"avg_over_time(comm_rank:rankwatch_late:ratio{{{labels}}}[15m])"
    straggles = f'ALERTS{{{labels}, alertname="StragglerRank", alertstate="firing"}}'
    return f"max({late} and on (cluster, job_id, rank) {straggles})"


def first_root(labels: str, back: str = "") -> str:
    """Return the query for the first log line that can be the cause. ``back``: range of the search, as ``[1h]``."""

    def first(operator: str) -> str:
        category = f"category{operator}{quoted(WEAK_CATEGORIES)}"
        at = f"rankwatch_job_log_first_root_timestamp_seconds{{{labels}, {category}}}"
        if back:
            at = f"last_over_time({at}{back})"
        return f"bottomk by (cluster, job_id) (1, {at})"

    roots = f"{first('!~')} or on (cluster, job_id) {first('=~')}"
    return f"max by (cluster, job_id, category, rank, host, advice) ({roots})"


def struck(labels: str) -> str:
    """Return the query for checks of ranks' hardware that began to fail after the run began."""
    before = f"last_over_time(rank:rankwatch_unhealthy_at_start:time{{{labels}}}[1d])"
    return f"rankwatch_rank_unhealthy{{{labels}}} unless on (cluster, job_id, rank, node, reason) {before}"


def lost_nodes(labels: str) -> str:
    """Return the query for the job's lost nodes; value: when a node last replied, or a reboot ended its ranks."""
    lost = f'ALERTS{{{labels}, alertname="NodeLost", alertstate="firing"}}'
    answers = f"rankwatch_job_ranks_live{{{labels}}}"
    return (
        f"max by (cluster, job_id, node) (last_over_time(job_node:rankwatch_silent:time{{{labels}}}[1d])"
        f' or rank:rankwatch_exit:time{{{labels}, class="reboot"}})'
        f" and on (cluster, job_id, node) ({lost} unless on (cluster, job_id, node) {answers})"
    )


def ended(labels: Mapping[str, str]) -> str:
    """Return the end of a rank as a phrase, from the labels reason, signal and code."""
    return in_words(labels.get("reason", "unknown"), labels.get("signal", ""), labels.get("code", ""))


def believed(stamp: float, seen: float) -> float:
    """Return ``stamp``, or ``seen`` if a wrong clock made the stamp. ``seen``: when Prometheus first saw the stamp."""
    return stamp if seen - OLDEST_SECONDS <= stamp <= seen else seen


def _timestamps(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the points, whose values are times. A value later than its point's time becomes the point's time."""
    return tuple((at, min(value, at)) for at, value in points)


def _started(running: tuple[tuple[float, float], ...], step: float) -> list[Happened]:
    """Return an event for each restart of all ranks, at its first rank's start."""
    return [
        Happened(value, "back", "", "", "all ranks restarted", "verdict")
        for (before, old), (_, value) in itertools.pairwise(running)
        if abs(value - old) > SAME_SECONDS and value > before - step
    ]


def _deaths(lines: Iterable[Line], which: str) -> list[tuple[Span, Happened]]:
    """Return the deaths in order of time, with ``which`` appended to the text of the first death of each episode."""
    seen: list[tuple[Span, Line]] = []
    for line in lines:
        for at, value in line.points:
            if seen and seen[-1][1] is line and abs(value - seen[-1][0].start) <= SAME_SECONDS:
                seen[-1] = (seen[-1][0]._replace(end=min(at, value + OLDEST_SECONDS)), line)
            else:
                seen.append((Span("died", min(value, at), at), line))
    deaths = []
    first = -math.inf
    for span, line in sorted(seen, key=lambda death: death[0].start):
        said = ended(line.labels)
        if span.start - first > EPISODE_SECONDS:
            first = span.start
            said += f": {which}"
        rank, node = line.labels.get("rank", ""), line.labels.get("node", "")
        deaths.append((span, Happened(span.start, "died", rank, node, said, "verdict")))
    return deaths


def _log(lines: Iterable[Line]) -> list[tuple[Span, Happened]]:
    events = []
    for line in lines:
        for value, at in {value: at for at, value in reversed(line.points)}.items():
            when = believed(value, at)
            rank, node, category = (line.labels.get(name, "") for name in ("rank", "host", "category"))
            what = f"its log: {category.replace('_', ' ')}"
            events.append((Span("log", when, when), Happened(when, "log", rank, node, what, "job_log")))
    return events


def _spans(
    kind: Kind,
    points: tuple[tuple[float, float], ...],
    step: float,
    start_of: Callable[[float, float], float] = lambda first, _value: first,
) -> list[Span]:
    """Return the spans of points that are ``step`` seconds apart; a single missing point does not end a span.

    ``start_of(first, value)`` returns a span's start from its first point.
    """
    spans: list[Span] = []
    for at, value in points:
        if spans and at - spans[-1].end <= 2.5 * step:
            spans[-1] = spans[-1]._replace(end=at)
        else:
            spans.append(Span(kind, start_of(at, value), at))
    return spans
