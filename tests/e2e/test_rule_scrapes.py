"""A page holds while scrapes fail: real rank tables, the shipped rules, and all ways in which Prometheus is deaf."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fleets import ABORTED, JOB, KILLED, SCRAPE_SECONDS, TERMINATED, ExitStatus, Fleet, Node, crashed, values
from rules import judge_rules, promtools, why_no_promtool

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(300),
]

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
DEATH_SECONDS = 300
KILLED_PAGE_SECONDS = DEATH_SECONDS + 15 + 15
"""A peer outlives it by 15 s; then a scrape, an evaluation, and `for`."""
CRASH_PAGE_SECONDS = DEATH_SECONDS + 15
LATE_SECONDS = 15
"""How much later than without failing scrapes a page may come."""
STEP_SECONDS = 5.0


class Wide(Fleet):
    """A job of ``nodes`` nodes with as many ranks each, which makes progress until a rank is gone."""

    def __init__(self, nodes: int, ranks: int, seed: int = 1) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # a test that can be repeated
        super().__init__(*(Node(f"n{number:02}", self.chance.uniform(0, 4.9)) for number in range(nodes)))
        self.world = nodes * ranks
        self.running = dict.fromkeys(range(self.world))
        self._ranks = ranks
        for rank in range(self.world):
            self.at(-20, self.home(rank).start, JOB, rank, self.world, -900.0)
        self.every(-5, 2000, STEP_SECONDS, self._step)

    def home(self, rank: int) -> Node:
        """Where a rank runs."""
        return self.nodes[rank // self._ranks]

    def end(self, seconds: float, rank: int, status: ExitStatus) -> None:
        """Let a rank leave."""
        self.at(seconds, self.running.pop, rank, None)
        self.at(seconds, self.home(rank).end, JOB, rank, status)

    def end_all(self, begin: float, spread: float, status: ExitStatus) -> None:
        """Let all ranks leave within ``spread`` seconds."""
        for rank in range(self.world):
            self.end(begin + self.chance.uniform(0, spread), rank, status)

    def fail(self, nodes: Iterable[Node], begin: float, end: float) -> None:
        """Let the scrapes of some nodes fail from one time to the other."""
        for node in nodes:
            node.failing |= set(range(int(begin // SCRAPE_SECONDS), int(end // SCRAPE_SECONDS)))

    def fail_by_chance(self, share: float, begin: float, end: float) -> None:
        """Let so many of all scrapes fail, one like another."""
        for node in self.nodes:
            slots = range(int(begin // SCRAPE_SECONDS), int(end // SCRAPE_SECONDS))
            node.failing |= {slot for slot in slots if self.chance.random() < share}

    def restart_agent(self, seconds: float, node: Node) -> None:
        """Let an agent be away for 12 s, and go on from its checkpoint."""
        self.at(seconds, self._answer, node, "no")
        self.at(seconds + 11, node.restart_agent)
        self.at(seconds + 12, self._answer, node, "yes")

    def _answer(self, node: Node, word: str) -> None:
        node.is_up = word == "yes"

    def _step(self) -> None:
        if len(self.running) == self.world:
            for rank in self.running:
                self.home(rank).progress(JOB, rank, self.world)


class Expected(NamedTuple):
    """What must come: an alert, by when, firing for how long (seconds, to the end when None); or nothing."""

    alert: str = ""
    by_seconds: float = 0.0
    until_seconds: float | None = None


Scenario = Callable[[Wide], Expected]
DURATION_SECONDS = 900


def killed(job: Wide) -> Expected:
    """SIGKILL for a rank of the third node; the others wait."""
    job.end(DEATH_SECONDS, 2 * job.world // len(job.nodes), KILLED)
    return Expected("RankDead", KILLED_PAGE_SECONDS)


def crashed_alone(job: Wide) -> Expected:
    """SIGSEGV for a rank of the third node; the others wait."""
    job.end(DEATH_SECONDS, 2 * job.world // len(job.nodes), crashed())
    return Expected("RankDead", CRASH_PAGE_SECONDS)


def crash_ends_job(job: Wide) -> Expected:
    """SIGSEGV for a rank of the third node; the others abort within three seconds."""
    victim = 2 * job.world // len(job.nodes)
    job.end(DEATH_SECONDS, victim, crashed())
    for rank in range(job.world):
        if rank != victim:
            job.end(DEATH_SECONDS + job.chance.uniform(0.2, 3), rank, ABORTED)
    return Expected("JobFailed", DEATH_SECONDS + 25)


def teardown(job: Wide) -> Expected:
    """SIGKILL for a rank, and half a second later SIGTERM for all others, by the launcher."""
    victim = 2 * job.world // len(job.nodes)
    job.end(DEATH_SECONDS, victim, KILLED)
    for rank in range(job.world):
        if rank != victim:
            job.end(DEATH_SECONDS + job.chance.uniform(0.4, 1.5), rank, TERMINATED)
    return Expected("JobFailed", DEATH_SECONDS + 25)


def cancel(job: Wide) -> Expected:
    """SIGTERM for all; one heeds it not and is killed."""
    job.end(DEATH_SECONDS + 30, 3, KILLED)
    for rank in range(job.world):
        if rank != 3:
            job.end(DEATH_SECONDS + job.chance.uniform(0, 2), rank, TERMINATED)
    return Expected()


def healthy(job: Wide) -> Expected:
    """Nothing happens to the job."""
    return Expected()


def no_failure(job: Wide) -> None:
    """Every scrape is answered."""


def another_node(job: Wide) -> None:
    """One scrape of another node fails, while the page is open."""
    job.fail(job.nodes[5:6], 400, 405)


def another_node_thrice(job: Wide) -> None:
    """Three scrapes of others fail around the death."""
    job.fail(job.nodes[5:6], 300, 305)
    job.fail(job.nodes[6:7], 305, 310)
    job.fail(job.nodes[7:8], 310, 315)


def own_node(job: Wide) -> None:
    """One scrape of the dead rank's node fails, while the page is open."""
    job.fail(job.nodes[2:3], 400, 405)


def own_agent(job: Wide) -> None:
    """The agent of the dead rank's node is started anew, while the page is open."""
    job.restart_agent(400, job.nodes[2])


def all_agents(job: Wide) -> None:
    """All agents are started anew within a minute, while the page is open."""
    for number, node in enumerate(job.nodes):
        job.restart_agent(400 + 50 * number / len(job.nodes), node)


def cut(job: Wide) -> None:
    """Prometheus hears nobody for 100 s, while the page is open."""
    job.fail(job.nodes, 400, 500)


def cut_from_own(job: Wide) -> None:
    """Prometheus does not hear the dead rank's node for 100 s."""
    job.fail(job.nodes[2:3], 400, 500)


def cut_from_others(job: Wide) -> None:
    """Prometheus hears the dead rank's node alone for 100 s."""
    job.fail([node for node in job.nodes if node is not job.nodes[2]], 400, 500)


def cut_soon(job: Wide) -> None:
    """Prometheus hears nobody for 100 s, 20 s after the page came."""
    job.fail(job.nodes, 350, 450)


def one_percent(job: Wide) -> None:
    """One scrape in a hundred fails, all the time."""
    job.fail_by_chance(0.01, 0, DURATION_SECONDS)


def five_percent(job: Wide) -> None:
    """Five scrapes in a hundred fail, all the time."""
    job.fail_by_chance(0.05, 0, DURATION_SECONDS)


FAILURES = (
    no_failure,
    another_node,
    another_node_thrice,
    own_node,
    own_agent,
    all_agents,
    cut,
    cut_from_own,
    cut_from_others,
    cut_soon,
    one_percent,
    five_percent,
)
SCENARIOS: tuple[Scenario, ...] = (killed, crashed_alone, crash_ends_job, teardown, cancel, healthy)
FIRING = 'ALERTS{alertstate="firing",alertname!~"Watchdog|RankwatchScrapesFail|RankwatchDown",severity="page"}'


def asked(expected: Expected) -> list[dict[str, Any]]:
    """Return what to ask promtool: how often a page began, when first, and whether it stands at the end."""
    span, end = f"{DURATION_SECONDS}s", f"{DURATION_SECONDS}s"
    began = f"count_over_time(({FIRING} unless ({FIRING} offset 5s))[{span}:5s])"
    if not expected.alert:
        return [{"expr": f"count by (alertname) ({began})", "eval_time": end, "exp_samples": []}]
    one = [{"labels": "{}", "value": 1}]
    first = f"min(min_over_time(timestamp({FIRING})[{span}:5s]))"
    return [
        {"expr": f"sum({began})", "eval_time": end, "exp_samples": one},
        {"expr": f"{first} > {expected.by_seconds + LATE_SECONDS}", "eval_time": end, "exp_samples": []},
        {"expr": f"count({FIRING})", "eval_time": end, "exp_samples": one},
    ]


CASES = [(scenario, fail) for scenario in SCENARIOS for fail in FAILURES]
FEW = [(killed, cut), (killed, one_percent), (teardown, own_node), (healthy, five_percent)]


@pytest.mark.parametrize(("scenario", "fail"), CASES if FULL else FEW, ids=lambda each: each.__name__)
def test_a_page_comes_once_and_holds(tmp_path: Path, scenario: Scenario, fail: Callable[[Wide], None]) -> None:
    """Whatever scrapes fail: one page that begins once, in time, and stands; and none where nothing happened."""
    job = Wide(16, 2)
    expected = scenario(job)
    fail(job)
    series = job.run(DURATION_SECONDS)
    test = {
        "name": f"{scenario.__name__} {fail.__name__}",
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": key, "values": values(found)} for key, found in series.items()],
        "promql_expr_test": asked(expected),
    }
    assert judge_rules(tmp_path, [test], promtools()[:1]) == []
