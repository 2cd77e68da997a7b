"""Find the incidents in a range: when each began and ended, and its cost in GPU-hours. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from agent.cli.explain.model import SYMPTOMS, Course, Incident, Span, What

APART_SECONDS = 900.0
"""Symptoms that are more than this apart belong to two incidents, whether or not the job worked in between."""
HANG_SECONDS = 120.0
"""If a job's last progress is this long before its first death, the job hung first: no operation takes this long."""

NODE_SECONDS = 120.0
"""A node's loss at most this long after the last progress explains the stop: the rules detect it after a minute."""
_HOUR = 3600.0


def incidents(course: Course) -> list[Incident]:
    """Return the incidents of the range, in order of time."""
    groups: list[list[Span]] = []
    last = 0.0
    for symptom in sorted((span for span in course.spans if span.kind in SYMPTOMS), key=lambda span: span.start):
        if groups and symptom.start - last <= APART_SECONDS:
            groups[-1].append(symptom)
            last = max(last, symptom.end)
        else:
            groups.append([symptom])
            last = symptom.end
    return [_incident(course, group) for group in groups if any(span.kind != "log" for span in group)]


def _incident(course: Course, group: Sequence[Span]) -> Incident:
    start = min(span.start for span in group)
    end = max(span.end for span in group)
    stops = [span for span in group if span.kind not in ("late", "hardware", "log")]
    if not stops:  # the job went on, though slower
        back = None if end >= course.end - 2 * course.step else end
        return Incident(start, end, start, back, "went_on")
    stopped = min(stop.start for stop in stops)
    deaths = [span.start for span in group if span.kind == "died"]
    before = [value for _, value in course.progress if value <= stopped]
    # The symptom of a hang appears late: work stopped at the last progress.
    since = max(before) if before else stopped
    if any(stopped < value <= stopped + 2 * course.step for _, value in course.progress):
        since = stopped  # points exist only at steps: the job made progress until then
    back = _back(course, stops, max([stopped, *deaths]))
    first = min(deaths, default=None)
    waited = first is not None and first - since >= HANG_SECONDS
    held = first is None or any(span.kind in ("silent", "unresponsive") and span.start < first - 5 for span in group)
    what: What = "hung" if waited or held else "died"
    if any(span.kind == "node_lost" and span.start <= since + NODE_SECONDS for span in group):
        what = "node_lost"
    return Incident(min(start, since), max(end, back or end), since, back, what, bool(before))


def _back(course: Course, stops: Sequence[Span], after: float) -> float | None:
    """Return when the job worked again: its first progress after a restart, or after the last symptom ended.

    Operations of surviving ranks do not count: they complete while the rules still show the death.
    """
    over = max(span.end for span in stops)
    after = max([after, *(span.start for span in stops)])
    starts = [value for _, value in course.running_since if value > after]
    seen = [value for at, value in course.progress if at > after]
    if starts:
        restart = min(starts)
        again = [value for value in seen if value > restart]
        return min(again) if again else (None if course.progress else restart)
    is_over = over < course.end - 2 * course.step
    again = [value for value in seen if value > max(after, over - course.step)]
    return min(again) if again and is_over else None


class Cost(NamedTuple):
    """Cost of an incident in GPU-hours.

    ``stopped``: GPUs held without work. ``again``: work since the last checkpoint, lost if the job restarted from it;
    None if no checkpoint is known. ``late``: waiting for late ranks before the stop. ``seconds``: how long the job held
    GPUs without work; ``goes_on``: the job still holds them. ``is_guess``: each rank counts as one GPU.
    """

    seconds: float
    stopped: float
    again: float | None
    late: float
    is_guess: bool
    goes_on: bool = False


def cost(course: Course, incident: Incident, ranks: int | None) -> Cost:
    """Return the cost of ``incident`` until the job worked again, or until the end of the range."""
    gpus, each_seconds, last = course.gpus, course.step, incident.end
    is_guess = not gpus
    if gpus:  # the job can release its GPUs before the range ends
        last = max(at for at, _ in gpus) + each_seconds
    else:
        gpus, each_seconds = ((course.start, float(ranks or 0)),), course.end - course.start

    def held(start: float, end: float) -> float:
        """Return the GPU-hours that the job held between two times."""
        shares = (max(min(end, at + each_seconds) - max(start, at), 0.0) * count for at, count in gpus)
        return sum(shares) / _HOUR

    until = min(last if incident.back is None else incident.back, course.end)
    goes_on = incident.back is None and last >= course.end - 2 * course.step
    seconds = max(until - incident.since, 0.0) if incident.stopped else 0.0
    stopped = held(incident.since, until) if incident.stopped else 0.0
    saved = [at for at in course.checkpoints if at <= incident.since]
    again = None
    if saved and incident.stopped:
        again = held(max(saved), incident.since)
    late_until = incident.since if incident.stopped else until
    late = sum(
        min(max(share, 0.0), 1.0) * held(at, min(at + course.step, late_until))
        for at, share in course.late
        if incident.start <= at < late_until
    )
    return Cost(seconds, stopped, again, late, is_guess, goes_on)
