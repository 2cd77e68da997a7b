"""Two replicas of Prometheus that scrape at different times, and two Alertmanagers that are peers: one notification."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from paging import FULL, WATCHES, why_no_pages
from situations import CALM, RANK_DEAD
from stages import Cast, Disturbance, Situation, Stage, stage
from stories import send
from watches import Watch

WHY_NOT = why_no_pages()
if not FULL:
    WHY_NOT = "only with RANKWATCH_TEST_FULL=1: takes five minutes"
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

LARGE_AND_OLD = {"page_lived": "long|short", "page_ranks": 4}
AWAY_SECONDS = 20.0
SITUATIONS = {
    "paired": Situation(
        "Two of each: SIGKILL for one rank; the others wait",
        Cast((0, 1)),
        send(1, signal.SIGKILL),
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.10 was killed (SIGKILL); 3 ranks still run",),
    ),
    "parted": Situation(
        "Two of each: SIGSEGV; the launchers end the others (torchrun)",
        Cast((0, 1), options=(*CALM, "--teardown", "torchrun", "--grace", "1")),
        send(2, signal.SIGSEGV),
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.11 crashed",),
    ),
    "lone": Situation(
        "Two of each: SIGKILL for one rank while one of each is away",
        Cast((0, 1)),
        None,
        (RANK_DEAD,),
        ("rank 3 on 10.0.0.11 was killed (SIGKILL); 3 ranks still run",),
        within_seconds=75.0,
        soon=False,
    ),
}


def kill_and_start(stage: Stage, prometheus: int, alertmanager: int) -> None:
    """Kill one of each, and start them again."""
    for watch in stage.site.watches:
        watch.prometheuses[prometheus].kill()
        watch.alertmanagers[alertmanager].kill()
    if not stage.happened["lone"]:
        with stage.event("lone") as job:
            job.signal_rank(3)
    stage.pass_time(AWAY_SECONDS)
    for watch in stage.site.watches:
        watch.prometheuses[prometheus].start()
        watch.alertmanagers[alertmanager].start()


DISTURBANCES = {
    "one": Disturbance(
        "One of two Prometheus and one of two Alertmanagers are killed and back after 20 s",
        lambda stage: kill_and_start(stage, 0, 1),
        75.0,
    ),
    "other": Disturbance(
        "The other ones are killed and back after 20 s", lambda stage: kill_and_start(stage, 1, 0), 90.0
    ),
}


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Provide what came of all situations."""
    options = {"watches": WATCHES, "replicas": 2, "ticket_wait": "1m"}
    directory = tmp_path_factory.mktemp("pair")
    with stage(directory, 2, SITUATIONS, DISTURBANCES, LARGE_AND_OLD, **options) as found:
        yield found


@pytest.fixture(params=WATCHES)
def watch(after: Stage, request: pytest.FixtureRequest) -> Watch:
    """Provide one of those who watch."""
    return next(each for each in after.site.watches if each.name == request.param)


@pytest.mark.parametrize("name", SITUATIONS)
def test_two_of_each_tell_once(after: Stage, watch: Watch, name: str) -> None:
    """Two senders to two Alertmanagers: one notification of each incident."""
    after.check(name, watch)


@pytest.mark.parametrize("what", DISTURBANCES)
def test_one_of_each_may_die(after: Stage, watch: Watch, what: str) -> None:
    """While one of each is killed and started anew nobody is told again, and not that it is over."""
    assert after.told_since(what, watch).pages == []
