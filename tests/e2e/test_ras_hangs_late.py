"""Hangs with NVIDIA's RAS whose witnesses are disturbed when the page is due, twice, or before the hang."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import hang_acts as acts
import pytest
from hang_acts import CULPRIT, ONCE_STOPPED, REPORTER, STANDBY, VICTIM
from hangs import Hang, HungJob, Told, play, table
from paging import site, why_no_pages
from ras_jobs import VERSION, why_no_ras

WHY_NOT = why_no_pages() or why_no_ras()
if os.environ.get("RANKWATCH_TEST_FULL") != "1":
    WHY_NOT = "only with RANKWATCH_TEST_FULL=1: takes ten minutes"
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

THRESHOLDS = {"page_ranks": 2}
NODES = 12
PAGED_SECONDS = 360.0
BACK_SECONDS = 80.0
"""A page may come so much later than the evidence is back: a minute without ranks that do not respond, and a scrape and
an evaluation."""
CLEARED_SECONDS = 60.0
LATE = 290.0
"""Just before the page is due."""
END = 390.0
OTHER = 11
BEHIND = {str(CULPRIT): "behind"}
FAST = {"NCCL_RAS_TIMEOUT_FACTOR": "0.1"}
"""RAS declares a process dead after 6 s, not 60."""


def stopped(place: int, at: float, seconds: float) -> tuple[acts.Timed, acts.Timed]:
    """Return that all ranks of a node are stopped for so long."""
    return (at, partial(acts.stop_node, place)), (at + seconds, partial(acts.continue_node, place))


def cut(place: int) -> tuple[acts.Timed, acts.Timed]:
    """Return that a node's link is lost for 15 s."""
    return (LATE, partial(acts.cut, place)), (LATE + 15, partial(acts.mend, place))


def restarted(place: int, at: float) -> acts.Timed:
    """Return that a node's agent is started anew."""
    return at, partial(acts.restart_agent, place)


def two(job: HungJob) -> None:
    """All wait for two ranks of two nodes."""
    job.wait_for([CULPRIT, OTHER])


wait = acts.wait_for_culprit
HANGS = {
    "stop-reporter": Hang((0, 1, 2, 3), wait, BEHIND, stopped(REPORTER, LATE, 12), seconds=END),
    "stop-victim": Hang((10, 11, 8, 9), wait, BEHIND, stopped(VICTIM, LATE, 12), seconds=END),
    "stop-long": Hang((9, 8, 11, 10), wait, BEHIND, stopped(REPORTER, LATE - 10, 40), seconds=END),
    "cut-reporter": Hang((3, 2, 1, 0), wait, BEHIND, cut(REPORTER), seconds=END, network=1),
    "cut-victim": Hang((2, 3, 0, 1), wait, BEHIND, cut(VICTIM), seconds=END, network=2),
    "restart-late": Hang((4, 5, 6, 7), wait, BEHIND, (restarted(REPORTER, LATE + 5),), seconds=END),
    "restart-both": Hang(
        (8, 9, 10, 11), wait, BEHIND, (restarted(REPORTER, 150), restarted(STANDBY, 152)), seconds=END
    ),
    "end-and-restart": Hang(
        (5, 4, 7, 6),
        wait,
        BEHIND,
        ((100, acts.end_agent), restarted(STANDBY, 200), (220, acts.start_agent)),
        seconds=END,
    ),
    "two": Hang((11, 10, 9, 8), two, BEHIND | {str(OTHER): "behind"}, seconds=END),
    "once-stopped": Hang(
        (1, 0, 3, 2),
        wait,
        BEHIND,
        ((0, partial(acts.stop_rank, ONCE_STOPPED)), (15, partial(acts.continue_rank, ONCE_STOPPED))),
        seconds=60 + 365,
        env=FAST,
        after=60.0,
    ),
}
BACK = {"stop-reporter": LATE + 12, "stop-victim": LATE + 12, "stop-long": LATE + 30}
"""When the evidence is back."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    """Provide what came of all hangs."""
    with site(tmp_path_factory.mktemp("late"), NODES, THRESHOLDS) as here:
        found = play(here, HANGS, VERSION)
        (here.cluster.directory / "table").write_text(table(VERSION, found) + "\n")
        yield found
        for node in here.cluster.nodes:
            assert "Traceback" not in node.agent.log()


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_a_page_that_names_the_culprits_alone(told: dict[str, Told], name: str) -> None:
    """A hang is told soon after its evidence is back, with its culprits alone, until launches resume."""
    each = told[name]
    assert each.named == set(HANGS[name].culprits.items()), each
    assert each.paged is not None, each
    assert each.paged <= max(PAGED_SECONDS, BACK.get(name, 0.0) + BACK_SECONDS), each
    assert each.cleared is not None, each
    assert each.cleared <= CLEARED_SECONDS, each
