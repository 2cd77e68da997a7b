"""Hangs with NVIDIA's RAS, end to end, and a disturbance in each: the culprit is named, in time, and nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import hang_acts as acts
import pytest
from hang_acts import CULPRIT, LEAVER, REPORTER, STANDBY
from hangs import Hang, Told, play, table
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
THRESHOLDS = {"page_ranks": 2}
NODES = 12
PAGED_SECONDS = 360.0
CLEARED_SECONDS = 60.0
LATER = 150.0
"""When in a hang the disturbance comes: with the clock begun anew no page would come in time."""
AWAY_SECONDS = 120.0
"""A node whose agent is away for 195 s counts as lost."""
NOBODY: dict[str, str] = {}
BEHIND = {str(CULPRIT): "behind"}


HANGS = {
    "stopped-node": Hang(
        (0, 1, 2, 3),
        acts.wait_for_culprit,
        BEHIND,
        ((LATER, partial(acts.stop_node, REPORTER)), (LATER + 12, partial(acts.continue_node, REPORTER))),
    ),
    "lost-link": Hang(
        (3, 2, 1, 0),
        acts.wait_for_culprit,
        BEHIND,
        ((LATER, partial(acts.cut, REPORTER)), (LATER + 15, partial(acts.mend, REPORTER))),
        network=1,
    ),
    "left": Hang((6, 5, 7, 4), acts.leave_world, {str(LEAVER): "left"}, seconds=440.0),
    "refused": Hang((1, 0, 3, 2), acts.wait_for_culprit, BEHIND, ((LATER, acts.refuse), (LATER + 30, acts.admit))),
    "deadline": Hang(
        (8, 9, 10, 11),
        acts.wait_for_culprit,
        BEHIND,
        ((LATER, partial(acts.stop_node, REPORTER)), (LATER + 40, partial(acts.continue_node, REPORTER))),
    ),
    "restarted-agent": Hang(
        (4, 5, 6, 7), acts.wait_for_culprit, BEHIND, ((LATER, partial(acts.restart_agent, REPORTER)),)
    ),
    "ended-agent": Hang(
        (5, 4, 7, 6), acts.wait_for_culprit, BEHIND, ((LATER, acts.end_agent), (LATER + AWAY_SECONDS, acts.start_agent))
    ),
    "cut-reporter": Hang(
        (9, 8, 11, 10),
        partial(acts.cut_and_wait, REPORTER),
        acts.missing(REPORTER),
        end=partial(acts.mend_and_go_on, REPORTER),
        network=2,
    ),
    "cut-standby": Hang(
        (10, 11, 8, 9),
        partial(acts.cut_and_wait, STANDBY),
        acts.missing(STANDBY),
        end=partial(acts.mend_and_go_on, STANDBY),
        network=3,
    ),
    "stopped-rank": Hang(
        (2, 3, 0, 1), partial(acts.stop_rank, CULPRIT), NOBODY, end=partial(acts.continue_rank, CULPRIT), seconds=70.0
    ),
    "pause": Hang((11, 8, 10, 9), acts.pause, NOBODY),
}


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
    """A hang is told in time whatever happens to the witnesses, with its culprit alone, until launches resume."""
    each = told[name]
    assert each.named == set(HANGS[name].culprits.items()), each
    assert each.paged is not None, each
    assert each.paged <= PAGED_SECONDS, each
    assert each.cleared is not None, each
    assert each.cleared <= CLEARED_SECONDS, each


@pytest.mark.parametrize("name", [name for name, hang in HANGS.items() if not hang.culprits])
def test_what_ends_soon_or_is_a_pause_is_no_hang(told: dict[str, Told], name: str) -> None:
    """A rank that was stopped for a minute and goes on, and a job that pauses, are told by nobody as a hang."""
    each = told[name]
    assert "CommunicatorStalled" not in {alert for alert, _ in each.fired}, each
    assert each.named == set()
    assert each.alive == 16, each
