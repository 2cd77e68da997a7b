"""From the accident to the page, with the scrape jobs, rules, routes and thresholds that we ship."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from clusters import ClusterJob
from drills import Accident, Drill, drill
from paging import WATCHES, why_no_pages

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_no_pages() is not None, reason=why_no_pages() or ""),
]

YOUNG = {"page_lived": "long|short"}
"""No test waits ten minutes until a death may page; all other thresholds are the shipped ones."""
SETTLE_SECONDS = 95.0
"""The longest that any verdict takes: the loss of a node. And the first message of the watchdog: where Prometheus does
not yet know its Alertmanager at the first evaluation, it sends the next after a minute and a half."""


def kill_rank(job: ClusterJob) -> None:
    """SIGKILL for rank 2, and nothing ends the others."""
    job.signal_rank(2)


def crash_rank(job: ClusterJob) -> None:
    """SIGSEGV for rank 1; the launchers end all others."""
    job.signal_rank(1, signal.SIGSEGV)


def end(job: ClusterJob) -> None:
    """An end in order."""
    job.parts[0].signal_launcher(signal.SIGUSR1)


def lose_node(job: ClusterJob) -> None:
    """The power of the second node fails."""
    job.nodes[1].lose_power()


ACCIDENTS = {
    "killed": Accident((0, 1), kill_rank, what="SIGKILL for one rank; the others wait", to_be_told="RankDead (page)"),
    "crashed": Accident(
        (0, 1),
        crash_rank,
        ("--teardown", "torchrun", "--grace", "1"),
        what="SIGSEGV; the launchers end the others (torchrun)",
        to_be_told="RankDead (page)",
    ),
    "ended": Accident((0, 1), end, what="A job ends in order"),
    "lost": Accident(
        (2, 3), lose_node, what="A node without power; its peers wait", to_be_told="NodeLost (page)", about="NodeLost"
    ),
}


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Drill]]:
    """Provide what came of all accidents, by watch."""
    directory = tmp_path_factory.mktemp("shipped")
    with drill(directory, 4, ACCIDENTS, SETTLE_SECONDS, YOUNG, WATCHES) as found:
        yield found


@pytest.fixture(params=WATCHES)
def after(drills: dict[str, Drill], request: pytest.FixtureRequest) -> Drill:
    """Provide what one watch told."""
    return drills[request.param]


def test_a_killed_rank_is_one_page(after: Drill) -> None:
    """SIGKILL for one rank: one page within 45 s with rank, node, signal and cause."""
    page = after.the_page("killed")
    assert page.names == ["RankDead"]
    assert page.says("killed", "rank 2", "10.0.0.11", "SIGKILL", "3 ranks still run", "killed the process")
    assert after.seconds_to(page, "killed") < 45.0


def test_a_crash_that_ends_the_job_is_one_page(after: Drill) -> None:
    """SIGSEGV, and the launchers end the others at once: one page within 35 s, and it names who was first."""
    page = after.the_page("crashed")
    assert page.names == ["RankDead"]
    assert page.says("crashed", "rank 1 on 10.0.0.10 crashed", "GPU, driver or memory when one rank crashes")
    assert after.seconds_to(page, "crashed") < 35.0


def test_an_orderly_end_is_silence(after: Drill) -> None:
    """A job that ends in order raises no alert of any severity."""
    assert after.fired("ended") == set()
    assert [after.told("ended", receiver) for receiver in ("page", "ticket", "info")] == [[], [], []]


def test_a_lost_node_is_one_page(after: Drill) -> None:
    """A node without power is one page, with the node and its ranks, and no word of the agent there."""
    page = after.the_page("lost")
    assert page.names == ["NodeLost"]
    assert page.says("Node 10.0.0.13 is lost, with ranks of job lost", "power")
    assert after.seconds_to(page, "lost") < 100.0


def test_the_watchdog_has_a_way_of_its_own(after: Drill) -> None:
    """What only says that alerts arrive reaches the dead man's switch and nobody else."""
    assert after.watch.inbox.at("/dead-mans-switch")
    everybody = [message for receiver in ("page", "ticket", "info") for message in after.watch.inbox.at(f"/{receiver}")]
    assert [message for message in everybody if "Watchdog" in str(message.body)] == []
