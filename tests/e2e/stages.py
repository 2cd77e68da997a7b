"""A stage: situations of jobs, nodes and watches side by side, and the notifications of each."""

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
"""Between two situations, so that they fall at all times between two scrapes."""
PROMPT_SECONDS = 160.0
"""All immediate notifications come within this time."""
POLL_SECONDS = 0.5


class Cast(NamedTuple):
    """The job of a situation: the nodes it runs on, its ranks, and the options of its launchers.

    Without options it is a quiet one. ``job_id``: where two have the same; else it is the situation's name. ``log``:
    the file that its ranks write to, see QuietJob.
    """

    nodes: tuple[int, ...]
    ranks: int = 4
    options: tuple[str, ...] = ()
    job_id: str = ""
    group: Path | None = None
    log: str = ""


class Situation(NamedTuple):
    """Its description, its job, what happens, and the expected notifications in order: (receiver, alert).

    ``story``: None where a disturbance makes it happen. ``about``: what notifications are about, if not its job.
    ``words``: in the first text. ``within_seconds``: after the event before it. ``overs``: how many "resolved" follow.
    ``soon``: all notifications come before the watches are disturbed. ``more``: how many notifications of one alert may
    follow, as different nodes' scrapes show ranks that died together.
    """

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
    """What happens to the watches, and how long its effects take."""

    what: str
    act: Callable[[Stage], object]
    seconds: float


class Stage:
    """A site with the jobs of all situations, and when what happened."""

    def __init__(self, here: Site, situations: Mapping[str, Situation]) -> None:
        self.site = here
        self.cluster = here.cluster
        self.situations = situations
        self.jobs: dict[str, Any] = {}
        self.happened: dict[str, list[float]] = {name: [] for name in situations}
        self.failed: dict[str, BaseException] = {}
        self.disturbed: dict[str, float] = {}
        """When each disturbance began."""
        self.over = 0.0

    def about(self, name: str) -> str:
        """Return what the notifications of a situation are about."""
        situation = self.situations[name]
        return situation.about or situation.cast.job_id or name

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[Any]:
        """Note the time at which something happens to a job; provides the job."""
        self.happened[name].append(time.time())
        yield self.jobs[name]

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a condition that is dear to look at; raises AssertionError."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
            threading.Event().wait(POLL_SECONDS)

    def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, seconds + 60.0, "the time")

    def notifications(self, watch: Watch, name: str) -> list[Page]:
        """Return a watch's notifications of a situation so far, without those of its end."""
        return [page for page in watch.notifications(self.about(name)) if page.alerts]

    def wait_until_notified(self, name: str, times: int = 1, seconds: float = 150.0) -> None:
        """Wait until each watch has sent this many notifications of a situation."""
        watches = self.site.watches
        what = f"notification {times} of {name}"
        self.wait(lambda: all(len(self.notifications(watch, name)) >= times for watch in watches), seconds, what)

    def wait_until_over(self, name: str, seconds: float = 150.0) -> None:
        """Wait until each watch has sent that the situation is resolved."""
        about, watches = self.about(name), self.site.watches
        said = [lambda watch=watch: any(not page.alerts for page in watch.notifications(about)) for watch in watches]
        self.wait(lambda: all(ended() for ended in said), seconds, f"the end of {name}")

    def arrived(self, name: str, watch: Watch) -> Arrivals:
        """Return a watch's notifications of a situation, and after how many seconds they came."""
        return arrivals(watch.notifications(self.about(name)), self.happened[name])

    def notifications_since(self, disturbance: str, watch: Watch) -> Arrivals:
        """Return a watch's notifications between a disturbance and the next one, of subjects that were complete before.

        Raises KeyError when there was no such disturbance.
        """
        began = self.disturbed[disturbance]
        ended = min([at for at in self.disturbed.values() if at > began] or [self.over])
        known = {self.about(name) for name in self.situations if self._was_paged(name, watch, began)}
        pages = [page for page in watch.notifications() if began <= page.time < ended and page.about in known]
        return arrivals(pages, [began])

    def check(self, name: str, watch: Watch) -> None:
        """Check a watch's notifications of a situation; raises AssertionError."""
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
    """Play all situations at once, disturb the watches, and provide what came of it."""
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
    """Wait for the immediate notifications. The tests report missing ones."""
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
    """Do one after the other; before the last one all stories have come to their ends."""
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
