"""Hangs with NVIDIA's RAS, end to end, and a disturbance in each: the culprit is named, in time, and nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest
from hangs import CULPRIT, Hang, HungJob, Told, play
from paging import site, why_no_pages
from ras_jobs import VERSION, why_no_ras

WHY_NOT = why_no_pages() or why_no_ras()
if os.environ.get("RANKWATCH_TEST_FULL") != "1":
    WHY_NOT = "only with RANKWATCH_TEST_FULL=1: takes nine minutes for each version"
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

VERSIONS = ("2.29.7", "2.31.2", VERSION)
THRESHOLDS = {"page_age_seconds": 0, "page_ranks": 2}
NODES = 12
PAGED_SECONDS = 360.0
CLEARED_SECONDS = 60.0
LATER = 150.0
"""When in a hang the disturbance comes: with the clock begun anew no page would come in time."""
REPORTER, VICTIM, STANDBY = 0, 1, 3
"""Nodes by their place in the job."""
NOBODY: dict[str, str] = {}
BEHIND = {str(CULPRIT): "behind"}
LEAVER = 9


def wait_for_culprit(job: HungJob) -> None:
    """All ranks wait for one."""
    job.wait_for([CULPRIT])


def pause(job: HungJob) -> None:
    """No rank launches any more, all are equally far."""


def stop_culprit(job: HungJob) -> None:
    """One rank is stopped, the others wait for it."""
    job.ras.signal(CULPRIT, signal.SIGSTOP)
    job.wait_for([CULPRIT])


def continue_culprit(job: HungJob) -> None:
    """The stopped rank goes on."""
    job.ras.signal(CULPRIT, signal.SIGCONT)
    job.go_on()


def leave_world(job: HungJob) -> None:
    """One rank leaves the world communicator."""
    job.leave_world(LEAVER)


def stop_reporter(job: HungJob) -> None:
    """SIGSTOP for all ranks of the asking node."""
    job.signal_node(REPORTER, signal.SIGSTOP)


def continue_reporter(job: HungJob) -> None:
    """SIGCONT for them."""
    job.signal_node(REPORTER, signal.SIGCONT)


def cut(place: int, job: HungJob) -> None:
    """A node's link in the ranks' network is down."""
    job.link(place, "down")


def cut_and_wait(place: int, job: HungJob) -> None:
    """A node's link is down, and all wait in the next collective."""
    cut(place, job)
    job.wait_for([])


def mend(place: int, job: HungJob) -> None:
    """The link is up."""
    job.link(place, "up")


def mend_and_go_on(place: int, job: HungJob) -> None:
    """The link is up, and the job goes on."""
    mend(place, job)
    job.go_on()


def refuse(job: HungJob) -> None:
    """The agent cannot connect to the ranks of its node."""
    job.loopback(REPORTER, "del")


def admit(job: HungJob) -> None:
    """It can again."""
    job.loopback(REPORTER, "add")


def restart_agent(job: HungJob) -> None:
    """The asking agent is killed and started."""
    job.restart_agent(REPORTER)


def end_agent(job: HungJob) -> None:
    """The asking agent is killed."""
    job.nodes[REPORTER].agent.kill9()


def missing(place: int) -> dict[str, str]:
    """Return the ranks of a node, as missing."""
    return {str(rank): "missing" for rank in range(4 * place, 4 * place + 4)}


HANGS = {
    "stopped-node": Hang(
        (0, 1, 2, 3), wait_for_culprit, BEHIND, ((LATER, stop_reporter), (LATER + 12, continue_reporter))
    ),
    "lost-link": Hang(
        (3, 2, 1, 0),
        wait_for_culprit,
        BEHIND,
        ((LATER, partial(cut, REPORTER)), (LATER + 15, partial(mend, REPORTER))),
        network=1,
    ),
    "left": Hang((6, 5, 7, 4), leave_world, {str(LEAVER): "left"}),
    "refused": Hang((1, 0, 3, 2), wait_for_culprit, BEHIND, ((LATER, refuse), (LATER + 30, admit))),
    "deadline": Hang(
        (8, 9, 10, 11), wait_for_culprit, BEHIND, ((LATER, stop_reporter), (LATER + 40, continue_reporter))
    ),
    "restarted-agent": Hang((4, 5, 6, 7), wait_for_culprit, BEHIND, ((LATER, restart_agent),)),
    "ended-agent": Hang((5, 4, 7, 6), wait_for_culprit, BEHIND, ((LATER, end_agent),)),
    "cut-reporter": Hang(
        (9, 8, 11, 10),
        partial(cut_and_wait, REPORTER),
        missing(REPORTER),
        end=partial(mend_and_go_on, REPORTER),
        network=2,
    ),
    "cut-standby": Hang(
        (10, 11, 8, 9),
        partial(cut_and_wait, STANDBY),
        missing(STANDBY),
        end=partial(mend_and_go_on, STANDBY),
        network=3,
    ),
    "stopped-rank": Hang((2, 3, 0, 1), stop_culprit, NOBODY, end=continue_culprit, seconds=70.0),
    "pause": Hang((7, 5, 6, 4), pause, NOBODY),
}
CUT = {"cut-reporter": "10.2.0.19", "cut-standby": "10.3.0.19"}


def table(version: str, told: dict[str, Told]) -> str:
    """Return what came of the hangs as lines."""
    lines = [f"{'case':16} {'version':8} {'paged s':>8} {'cleared s':>9}  named; all that fired; alive"]
    for name, each in told.items():
        named = " ".join(f"{rank}:{reason}" for rank, reason in sorted(each.named))
        fired = " ".join(f"{alert}/{severity}" for alert, severity in sorted(each.fired))
        paged, cleared = (f"{value:.0f}" if value is not None else "-" for value in (each.paged, each.cleared))
        lines.append(f"{name:16} {version:8} {paged:>8} {cleared:>9}  {named}; {fired}; {each.alive}")
    return "\n".join(lines)


@pytest.fixture(scope="module", params=VERSIONS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    """Provide what came of all hangs with one version."""
    version = request.param
    if reason := why_no_ras(version):
        pytest.skip(reason)
    with site(tmp_path_factory.mktemp(f"hangs-{version}"), NODES, THRESHOLDS) as here:
        found = play(here, HANGS, version)
        (here.cluster.directory / "table").write_text(table(version, found) + "\n")
        yield found
        for node in here.cluster.nodes:
            assert "Traceback" not in node.agent.log()


@pytest.mark.parametrize("name", [name for name, hang in HANGS.items() if hang.culprits])
def test_a_hang_is_a_page_that_names_the_culprit_alone(told: dict[str, Told], name: str) -> None:
    """A hang is told in time whatever befalls the witnesses, with its culprit alone, until launches resume."""
    each = told[name]
    assert each.named == set(HANGS[name].culprits.items()), each
    assert each.paged is not None, each
    assert each.paged <= PAGED_SECONDS, each
    assert each.cleared is not None, each
    assert each.cleared <= CLEARED_SECONDS, each
    if name in CUT:
        assert f"They are all on {CUT[name]}: that node is cut off from the others" in each.text
    else:
        assert "cut off" not in each.text


@pytest.mark.parametrize("name", [name for name, hang in HANGS.items() if not hang.culprits])
def test_what_ends_soon_or_is_a_pause_is_no_hang(told: dict[str, Told], name: str) -> None:
    """A rank that was stopped for a minute and goes on, and a job that pauses, are told by nobody as a hang."""
    each = told[name]
    assert "CommunicatorStalled" not in {alert for alert, _ in each.fired}, each
    assert each.named == set()
    assert each.alive == 16, each
