"""The truth table: events of jobs, evaluated by the agents' real code, the rules and promtool."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from full import FULL, full
from play import EVENT, Due, Play, Situation
from prometheus import why_no_prometheus
from rulers import PROMTOOL, VMALERT_TOOL, built, fired, texts
from truth_table import SITUATIONS

REST_SECONDS = 240.0
"""How long a site is observed after the last event."""
SLOWER = {5: 0.0, 15: 60.0, 30: 150.0}
"""The allowed delay of an alert by interval: at 15 s and 30 s each of three rule levels uses older results."""
LABELS = ("alertname", "rank", "node", "class", "severity", "job_id", "cluster")
ALSO_AT_30 = {"crash_alone", "killed_alone", "power", "power_while_the_job_goes_on", "cancel"}
PLAYS = [
    pytest.param(situation, interval, id=f"{situation.name}-{interval}")
    for situation in SITUATIONS
    for interval in SLOWER
    if interval < 30 or situation.name in ALSO_AT_30
]
SEEDS = range(4 if FULL else 1)
pytestmark = pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("situation", "interval"), PLAYS)
def test_what_fires(situation: Situation, interval: int, seed: int, tmp_path: Path) -> None:
    """Exactly the expected alerts fire, in time and without a gap, even in the worst order of rules."""
    judge(situation, interval, seed, tmp_path, PROMTOOL)


@full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_what_fires_by_vmalert(situation: Situation, tmp_path: Path) -> None:
    """VictoriaMetrics fires the same alerts at most one interval later."""
    judge(situation, 5, 0, tmp_path, VMALERT_TOOL)


def judge(situation: Situation, interval: int, seed: int, scratch: Path, ruler: Path) -> None:
    """Play a situation and check which alerts fire, and when."""
    play = Play(seed, situation, interval)
    situation.happens(play)
    play.run(REST_SECONDS)
    rules = built(scratch, interval, worst_order=interval > 5)
    seen = fired(play.sites, rules, LABELS, interval, ruler)
    assert seen.keys() == situation.due.keys()
    slower = SLOWER[interval] + (interval if ruler == VMALERT_TOOL else 0)
    for name, due in situation.due.items():
        check([time - EVENT for time in seen[name]], due, interval, play.site.now - EVENT, slower)


def check(times: list[float], due: Due, interval: int, end: float, slower: float) -> None:
    """Check when an alert fires: ``times``, in s after the event, up to ``end``; it may be late by ``slower`` s."""
    assert due.after <= times[0] <= due.by + slower
    assert all(later - earlier == interval for earlier, later in pairwise(times))
    assert times[-1] >= (end if due.until is None else due.until) - 3 * interval
    assert due.until is None or times[-1] <= due.until + due.gone + slower


TEXTS = {
    "oom_alone": (
        r"Job 7: rank \d on n\d was killed by the OOM killer; 7 ranks still run",
        "CAUSE: host memory ran out",
    ),
    "killed_alone": (r"was killed \(SIGKILL\); 7 ranks still run", "likely an admin"),
    "killed_before_teardown": (r"was killed, and others ended after it; no rank runs any more", "likely an admin"),
    "crash_alone": (r"crashed; 7 ranks still run", "GPU, driver or memory when one rank crashes"),
    "status_alone": (r" failed; 7 ranks still run", "an error of the program"),
    "left_alone": (r"exited before the others; 7 ranks still run", "the program ended early"),
    "failed_hardware": (r" failed; no rank runs any more", "CAUSE: xid 79"),
}
"""By situation: a text in RankDead's summary, and a text in its description."""


@pytest.mark.parametrize("name", TEXTS)
def test_page_text(name: str, tmp_path: Path) -> None:
    """RankDead's summary says how the rank ended, and its description says the likely cause."""
    [situation] = [situation for situation in SITUATIONS if situation.name == name]
    play = Play(0, situation, 5)
    situation.happens(play)
    play.run(REST_SECONDS)
    [due] = situation.due.values()
    said = texts(play.sites, built(tmp_path, 5, worst_order=False), tmp_path, "RankDead", int(EVENT + due.by + 5))
    summary, cause = TEXTS[name]
    assert re.search(summary, said), said
    assert cause in said, said
