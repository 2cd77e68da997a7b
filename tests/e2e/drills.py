"""Drills: jobs side by side at one site, to each its own accident, and who was told of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusters import ClusterJob
from nodes import wait_until
from paging import site
from reports import Row, arrivals, write_report
from watches import RECEIVERS, WHOLE, Page, Watch

LATE_SECONDS = 60.0
"""On a busy machine jobs are silent for a while when they start, and a page on a longer silence comes so much later."""


class Accident(NamedTuple):
    """What happens to a job that runs on some nodes; ``options`` are the launchers'.

    ``job`` starts it, as ClusterJob does. For the report: ``what`` it is to people, what is ``to_be_told``, and
    ``about`` what, where it is not the job.
    """

    nodes: tuple[int, ...]
    happen: Callable[[Any], object]
    options: tuple[str, ...] = ()
    ranks: int = 4
    job: Callable[..., Any] = ClusterJob
    what: str = ""
    to_be_told: str = "nothing"
    about: str = ""


class Drill:
    """What one watch told of the accidents; jobs are called by their accident's name, which is their id."""

    def __init__(self, watch: Watch, happened_at: Mapping[str, float]) -> None:
        self.watch = watch
        self._happened_at = happened_at

    def has(self, name: str) -> bool:
        """Return whether there was such an accident."""
        return name in self._happened_at

    def told(self, name: str, receiver: str) -> list[Page]:
        """Return the notifications of a job."""
        return self.watch.pages(name, receiver)

    def the_page(self, name: str) -> Page:
        """Return the one page of a job, of which nobody else was told."""
        told = {receiver: self.told(name, receiver) for receiver in RECEIVERS}
        assert [len(told[receiver]) for receiver in told] == [1, 0, 0], (self.fired(name), told)
        return told["page"][0]

    def seconds_to(self, page: Page, name: str) -> float:
        """Return how long after its accident a page came."""
        return page.time - self._happened_at[name]

    def fired(self, name: str) -> set[str]:
        """Return the alerts of a job that were ever firing, whoever was told."""
        found = self.watch.prometheus.query(f'max_over_time(ALERTS{{job_id="{name}",alertstate="firing"}}[1h])')
        return {each["metric"]["alertname"] for each in found}


@contextlib.contextmanager
def drill(
    directory: Path,
    nodes: int,
    accidents: Mapping[str, Accident],
    settle_seconds: float,
    thresholds: Mapping[str, Any],
    watches: Sequence[str] = (WHOLE,),
    **more: Any,
) -> Iterator[dict[str, Drill]]:
    """Let the accidents happen once Prometheus knows all the jobs.

    Provides what has come of them ``settle_seconds`` later, by watch; later yet where somebody is still to be told.
    """
    with site(directory, nodes, thresholds, watches=watches, **more) as here, contextlib.ExitStack() as stack:
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
        due = [each.about or name for name, each in accidents.items() if each.to_be_told != "nothing"]
        wait_until(lambda: time.time() > over, settle_seconds + 1, "the end of the drill")
        wait_until(
            lambda: (
                time.time() > over + LATE_SECONDS or all(watch.told(name) for watch in here.watches for name in due)
            ),
            LATE_SECONDS + 10,
            "pages that are late",
        )
        rows = [
            Row(
                each.what or name,
                each.to_be_told,
                [arrivals(watch.told(each.about or name), [happened_at[name]]) for watch in here.watches],
            )
            for name, each in accidents.items()
        ]
        write_report(directory, directory.name, here.watches, rows)
        yield {watch.name: Drill(watch, happened_at) for watch in here.watches}
