"""What an incident cost, in GPU-hours. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from agent.cli.explain.model import Course, HeldGpus, Incident

_HOUR = 3600.0


class Cost(NamedTuple):
    """GPU-hours. ``stopped``: held while no work was done; ``again``: of work since the last checkpoint, done for
    nothing if the job went back to it, None where no checkpoint is known; ``late``: waiting for late ranks before.

    ``seconds``: for how long the job held GPUs without work; ``goes_on``: it still does. ``is_guess``: GPUs are not
    known, each rank is taken for one.
    """

    seconds: float
    stopped: float
    again: float | None
    late: float
    is_guess: bool
    goes_on: bool = False


def cost(course: Course, incident: Incident, ranks: int | None) -> Cost:
    """What ``incident`` cost until work was done again, or until the range ends."""
    gpus: Sequence[HeldGpus] = course.gpus
    is_guess = not gpus
    last = incident.end
    if gpus:  # they end by themselves when they are given back
        last = max(each.start + each.seconds for each in gpus)
    else:
        gpus = [HeldGpus(course.start, course.end - course.start, float(ranks or 0))]
    until = min(last if incident.back is None else incident.back, course.end)
    goes_on = incident.back is None and last >= course.end - 2 * course.step
    seconds = max(until - incident.since, 0.0) if incident.stopped else 0.0
    stopped = held(gpus, incident.since, until) if incident.stopped else 0.0
    saved = [at for at in course.checkpoints if at <= incident.since]
    again = None
    if saved and incident.stopped:
        again = held(gpus, max(saved), incident.since)
    late_until = incident.since if incident.stopped else until
    late = sum(
        min(max(share, 0.0), 1.0) * held(gpus, at, min(at + course.step, late_until))
        for at, share in course.late
        if incident.start <= at < late_until
    )
    return Cost(seconds, stopped, again, late, is_guess, goes_on)


def held(gpus: Sequence[HeldGpus], start: float, end: float) -> float:
    """GPU-hours that the job held between two times."""
    total = 0.0
    for each in gpus:
        overlap = min(end, each.start + each.seconds) - max(start, each.start)
        total += max(overlap, 0.0) * each.number
    return total / _HOUR
