"""Events of a job on a simulated site, and the alerts that must fire. No other alert may fire.

Times are seconds after ``EVENT``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from site_of_agents import Job, Node, Rank, Site

EVENT = 670.0
"""Time of the event, in seconds after the job's start: 10 s after a scrape (interval 15 s), or at a scrape (5 s)."""


class Due(NamedTuple):
    """An alert that must fire. It starts between ``after`` and ``by``, and fires without a gap until ``until``.

    It ends at most ``gone`` seconds after ``until``. ``until`` None: it fires until the end of the test."""

    after: float
    by: float
    until: float | None = None
    gone: float = 90.0


class Play:
    """One job on a site. The seed gives clock errors and delays of scrapes; seed 0 gives none."""

    def __init__(self, seed: int, situation: Situation, interval: float) -> None:
        nodes, warm_up = situation.nodes + situation.idle, situation.warm_up
        dice = random.Random(seed)  # noqa: S311  # a scenario, no secret
        delays = {f"n{number}": dice.uniform(0.0, 2.0) if seed else 0.0 for number in range(nodes)}
        self.site = Site(interval, lambda name, _time: delays.get(name, 0.0))
        self.sites = [self.site]
        skews = [dice.choice((-3600.0, -90.0, 0.0, 90.0, 3600.0)) if seed else 0.0 for _ in range(nodes)]
        drifts = [dice.uniform(-5e-5, 5e-5) if seed else 0.0 for _ in range(nodes)]
        self.nodes: list[Node] = [self.site.node(f"n{n}", skews[n], drifts[n]) for n in range(nodes)]
        self.site.run(EVENT - warm_up)
        self.job = Job(self.site, "7", self.nodes[: situation.nodes], situation.per_node, proven=situation.proven)
        self.site.run(warm_up)
        self.borrowers: list[Rank] = []

    def add_cluster(self) -> Job:
        """Add a second cluster, with nodes of the same names and a healthy job of the same id."""
        other = Site(self.site.interval, cluster="c2")
        self.sites.append(other)
        nodes = [other.node(name) for name in self.site.nodes]
        job = Job(other, "7", nodes, len(self.ranks) // len(nodes), user="bob")
        other.run(self.site.now)
        return job

    def borrow(self, node: int, ranks: int, world: int | None) -> None:
        """Let another user start processes on this node that claim to be ranks of the job."""
        claimed = Job(self.site, "7", [self.nodes[node]], ranks, user="mallory", proven=False, world=world)
        self.borrowers = claimed.ranks

    @property
    def ranks(self) -> list[Rank]:
        return self.job.ranks

    def run(self, seconds: float) -> None:
        for site in self.sites:
            site.run(seconds)


Step = Callable[[Play], object]
"""Lets one event happen; the functions of steps.py return steps."""


class Situation(NamedTuple):
    """The events of a job, its number of nodes and of ranks per node, and the expected alerts (``due``).

    A key of ``due`` has alert, rank, node and class, and "info" for an alert that is no page. ``idle``: further nodes,
    without ranks of the job. ``warm_up``: the job's age. ``proven``: the scheduler proves that the ranks are the job's.
    """

    name: str
    steps: Iterable[Step]
    due: Mapping[str, Due] = MappingProxyType({})
    nodes: int = 2
    per_node: int = 4
    warm_up: float = EVENT
    idle: int = 0
    proven: bool = True

    def happens(self, play: Play) -> None:
        for step in self.steps:
            step(play)
