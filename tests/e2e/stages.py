"""A stage runs situations (events of jobs and nodes) in parallel, and stores the notifications about each situation."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from clusters import ClusterJob
from paging import Site, site
from quiet_jobs import QuietJob
from reports import Arrivals, Row, arrivals, write_report
from watches import Page, Watch

STAGGER_SECONDS = 0.7
"""Time between two situations, so that they start at different times within a scrape interval."""
PROMPT_SECONDS = 160.0
"""All immediate notifications arrive within this time."""
POLL_SECONDS = 0.5


class Cast(NamedTuple):
    """The job of a situation: its nodes, its ranks, and the options of its launchers.

    Without options it is a quiet job. ``job_id``: for jobs with equal ids; the default is the situation's name.
    ``log``: the output file of its ranks, see QuietJob."""

    nodes: tuple[int, ...]
    ranks: int = 4
    options: tuple[str, ...] = ()
    job_id: str = ""
    group: Path | None = None
    log: str = ""


class Situation(NamedTuple):
    """The description, the job, the story, and the expected notifications in order: (receiver, alert).

    ``story``: None if a disturbance causes the situation. ``about``: the subject of notifications, if not the job.
    ``words``: words that the first notification has. ``within_seconds``: limit of the time from the previous event to a
    notification. ``overs``: the number of resolved notifications that follow. ``soon``: all notifications arrive before
    the disturbances. ``more``: how many more notifications of one alert may follow, because ranks that died together
    appear in scrapes of different nodes."""

    what: str
    cast: Cast
    story: Callable[[Stage, str], object] | None = None
    expected: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    within_seconds: float = 60.0
    about: str = ""
    overs: int = 0
    soon: bool = True
    more: int = 0


class Disturbance(NamedTuple):
    """A disturbance of the watches, and the duration of its effects."""

    what: str
    act: Callable[[Stage], object]
    seconds: float


class Stage:
    """A site with the jobs of all situations, and the times of events."""

    def __init__(self, here: Site, situations: Mapping[str, Situation]) -> None:
        self.site = here
        self.cluster = here.cluster
        self.situations = situations
        self.jobs: dict[str, Any] = {}
        self.happened: dict[str, list[float]] = {name: [] for name in situations}
        self.failed: dict[str, BaseException] = {}
        self.disturbed: dict[str, float] = {}
        """The start of each disturbance."""
        self.over = 0.0

    def about(self, name: str) -> str:
        """Return the subject of a situation's notifications."""
        situation = self.situations[name]
        return situation.about or situation.cast.job_id or name

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[Any]:
        """Record the time of an event of a job; provide the job."""
        self.happened[name].append(time.time())
        yield self.jobs[name]

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Poll a condition that is slow to check; raises AssertionError."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
            threading.Event().wait(POLL_SECONDS)

    def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, seconds + 60.0, "the time")

    def notifications(self, watch: Watch, name: str) -> list[Page]:
        """Return a watch's notifications about a situation, without the resolved notifications."""
        return [page for page in watch.notifications(self.about(name)) if page.alerts]

    def wait_until_notified(self, name: str, times: int = 1, seconds: float = 150.0) -> None:
        """Wait until each watch has sent this many notifications about a situation."""
        watches = self.site.watches
        what = f"notification {times} of {name}"
        self.wait(lambda: all(len(self.notifications(watch, name)) >= times for watch in watches), seconds, what)

    def wait_until_over(self, name: str, seconds: float = 150.0) -> None:
        """Wait until each watch has sent that the situation is resolved."""
        about, watches = self.about(name), self.site.watches
        said = [lambda watch=watch: any(not page.alerts for page in watch.notifications(about)) for watch in watches]
        self.wait(lambda: all(ended() for ended in said), seconds, f"the end of {name}")

    def arrived(self, name: str, watch: Watch) -> Arrivals:
        """Return a watch's notifications about a situation, each with the seconds since the situation's last event."""
        return arrivals(watch.notifications(self.about(name)), self.happened[name])

    def notifications_since(self, disturbance: str, watch: Watch) -> Arrivals:
        """Return a watch's notifications from a disturbance to the next, about situations that were paged before.

        Raises KeyError if the disturbance did not happen."""
        began = self.disturbed[disturbance]
        ended = min([at for at in self.disturbed.values() if at > began] or [self.over])
        known = {self.about(name) for name in self.situations if self._was_paged(name, watch, began)}
        pages = [page for page in watch.notifications() if began <= page.time < ended and page.about in known]
        return arrivals(pages, [began])

    def check(self, name: str, watch: Watch) -> None:
        """Check that a watch received the expected notifications about a situation; raises AssertionError if not."""
        assert name not in self.failed, self.failed[name]
        situation, arrived = self.situations[name], self.arrived(name, watch)
        firing = [(page, after) for page, after in zip(arrived.pages, arrived.seconds, strict=True) if page.alerts]
        firing_names = [(page.receiver, *dict.fromkeys(page.names)) for page, _ in firing]
        assert firing_names in [
            [*situation.expected, *situation.expected[-1:] * more] for more in range(situation.more + 1)
        ], arrived
        assert len(arrived.pages) - len(firing) == situation.overs, arrived
        assert all(page.says(*situation.words) for page, _ in firing[:1])
        assert all(after < situation.within_seconds for _, after in firing), arrived

    def _was_paged(self, name: str, watch: Watch, when: float) -> bool:
        wanted = len(self.situations[name].expected)
        return 0 < wanted <= len([page for page in self.notifications(watch, name) if page.time < when])


@contextlib.contextmanager
def stage(
    directory: Path,
    nodes: int,
    situations: Mapping[str, Situation],
    disturbances: Mapping[str, Disturbance],
    thresholds: Mapping[str, Any],
    **more: Any,
) -> Iterator[Stage]:
    """Run all situations at once, disturb the watches, and provide the stage afterwards."""
    with site(directory, nodes, thresholds, **more) as here, contextlib.ExitStack() as stack:
        this = Stage(here, situations)
        for name, situation in situations.items():
            this.jobs[name] = stack.enter_context(_cast(this, name, situation.cast))
        for job in this.jobs.values():
            here.wait_until_seen(job)
        with ThreadPoolExecutor(len(situations)) as pool:
            playing = _begin(this, pool)
            _wait_for_the_soon(this)
            _disturb(this, disturbances, playing)
        this.over = time.time()
        rows = [
            Row(scene.what, _expected(scene), [this.arrived(name, watch) for watch in here.watches])
            for name, scene in situations.items()
        ]
        rows += [
            Row(scene.what, "nothing more", [this.notifications_since(name, watch) for watch in here.watches])
            for name, scene in disturbances.items()
        ]
        write_report(directory, directory.name, here.watches, rows)
        yield this


def _cast(this: Stage, name: str, cast: Cast) -> Any:
    nodes = [this.cluster.nodes[number] for number in cast.nodes]
    if cast.options:
        return ClusterJob(this.cluster, name, nodes, cast.ranks, *cast.options)
    return QuietJob(this.cluster, cast.job_id or name, nodes, cast.ranks, cast.group, cast.log)


def _begin(this: Stage, pool: ThreadPoolExecutor) -> dict[str, Future[object]]:
    playing = {}
    for name, situation in this.situations.items():
        if situation.story is not None:
            playing[name] = pool.submit(situation.story, this, name)
            this.pass_time(STAGGER_SECONDS)
    return playing


def _wait_for_the_soon(this: Stage) -> None:
    """Wait for the immediate notifications. If a notification does not come, a test fails later, not this function."""
    wanted = {
        name: len(situation.expected)
        for name, situation in this.situations.items()
        if situation.soon and situation.story
    }
    with contextlib.suppress(AssertionError):
        this.wait(
            lambda: all(
                len(this.notifications(watch, name)) >= wanted[name] for watch in this.site.watches for name in wanted
            ),
            PROMPT_SECONDS,
            "the immediate notifications",
        )


def _disturb(this: Stage, disturbances: Mapping[str, Disturbance], playing: Mapping[str, Future[object]]) -> None:
    """Run the disturbances in order; before the last one, wait for the end of all stories."""
    *_, last = disturbances
    for name, disturbance in disturbances.items():
        if name == last:
            ends = {situation: story.exception() for situation, story in playing.items()}
            this.failed |= {situation: error for situation, error in ends.items() if error is not None}
        this.disturbed[name] = time.time()
        disturbance.act(this)
        this.pass_time(disturbance.seconds)


def _expected(situation: Situation) -> str:
    return ", ".join(f"{alert} ({receiver})" for receiver, alert in situation.expected) or "nothing"
