"""Drills: jobs side by side at one site, to each its own accident, and who was told of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusters import ClusterJob
from nodes import wait_until
from paging import Page, Site, site


class Accident(NamedTuple):
    """What befalls a job that runs on some nodes; ``options`` are the launchers'.

    ``job`` starts it, as ClusterJob does.
    """

    nodes: tuple[int, ...]
    happen: Callable[[Any], object]
    options: tuple[str, ...] = ()
    ranks: int = 4
    job: Callable[..., Any] = ClusterJob


class Drill:
    """What came of the accidents; jobs are called by their accident's name, which is their id."""

    def __init__(self, here: Site, happened_at: Mapping[str, float]) -> None:
        self.site = here
        self._happened_at = happened_at

    def has(self, name: str) -> bool:
        """Return whether there was such an accident."""
        return name in self._happened_at

    def told(self, name: str, receiver: str) -> list[Page]:
        """Return the notifications of a job."""
        return self.site.pages(name, receiver)

    def the_page(self, name: str) -> Page:
        """Return the one page of a job, of which nobody else was told."""
        told = {receiver: self.told(name, receiver) for receiver in ("page", "ticket", "info")}
        assert [len(told[receiver]) for receiver in told] == [1, 0, 0], (self.fired(name), told)
        return told["page"][0]

    def seconds_to(self, page: Page, name: str) -> float:
        """Return how long after its accident a page came."""
        return page.time - self._happened_at[name]

    def fired(self, name: str) -> set[str]:
        """Return the alerts of a job that were ever firing, whoever was told."""
        found = self.site.prometheus.query(f'max_over_time(ALERTS{{job_id="{name}",alertstate="firing"}}[1h])')
        return {each["metric"]["alertname"] for each in found}


@contextlib.contextmanager
def drill(
    directory: Path,
    nodes: int,
    accidents: Mapping[str, Accident],
    settle_seconds: float,
    thresholds: Mapping[str, Any],
    **more: Any,
) -> Iterator[Drill]:
    """Let the accidents happen once Prometheus knows all the jobs.

    Provides what has come of them ``settle_seconds`` later.
    """
    with site(directory, nodes, thresholds, **more) as here, contextlib.ExitStack() as stack:
        jobs: dict[str, Any] = {}
        for name, accident in accidents.items():
            where = [here.cluster.nodes[number] for number in accident.nodes]
            jobs[name] = stack.enter_context(accident.job(here.cluster, name, where, accident.ranks, *accident.options))
        for job in jobs.values():
            here.wait_until_seen(job)
        happened_at: dict[str, float] = {}
        for name, accident in accidents.items():
            happened_at[name] = time.time()
            accident.happen(jobs[name])
        over = time.time() + settle_seconds
        wait_until(lambda: time.time() > over, settle_seconds + 1, "the end of the drill")
        yield Drill(here, happened_at)
