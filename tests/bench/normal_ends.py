"""Jobs that end as jobs do, in real rank tables under a clock of ours, and what the shipped rules say to that."""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from fleets import ABORTED, ENDED_WELL, KILLED, SCRAPE_SECONDS, TERMINATED, UNKNOWN, ExitStatus, Fleet, Node, values
from rules import RULES

KINDS = ("finish", "cancel", "preempt", "time limit")
KILL_WAIT_SECONDS = 30.0
END_SECONDS = 60.0
DURATION_SECONDS = 420
"""The longest end (a preemption's two minutes), and every verdict and `for` after it."""
STEP_SECONDS = 5.0
CLOCK_ERROR_SECONDS = 0.02
ABORT_SECONDS = (0.1, 3.0)
"""How long after the first rank's end those of other nodes abort: NCCL's watchdogs look ten times a second."""
TIMEOUT_SECONDS = 4.0
_GOT = re.compile(r'alertname="(\w+)".*?job_id="([^"]+)".*?severity="(\w+)"')


class Outcome(NamedTuple):
    """What fired: (kind of end, alert, severity) by number of jobs."""

    jobs: Counter[str]
    alerts: Counter[tuple[str, str, str]]


class Ending:
    """One job of 4 to 32 ranks on nodes of its own, and its end, all drawn by chance."""

    def __init__(self, fleet: Fleet, nodes: list[Node], job_id: str, kind: str, chance: random.Random) -> None:
        self._fleet = fleet
        self._nodes = nodes
        self._job_id = job_id
        self._chance = chance
        self._world = len(nodes) * chance.choice((2, 4, 8))
        self._unknown = chance.random() < 0.3  # an old kernel: nobody tells how the ranks of this job ended
        self._running = set(range(self._world))
        self._last = 0.0
        self._latency = {node.name: chance.uniform(0.0, 2.0) for node in nodes}
        age = chance.uniform(600.0, 90_000.0)
        for rank in range(self._world):
            fleet.at(-20, self._node(rank).start, job_id, rank, self._world, -age)
        fleet.every(-5 + chance.random(), DURATION_SECONDS, STEP_SECONDS, self._step)
        begin = END_SECONDS + chance.uniform(0.0, 10.0)
        if kind == "finish":
            self._finish(begin)
        else:
            grace = chance.uniform(30.0, 120.0) if kind == "preempt" else KILL_WAIT_SECONDS
            self._terminate(begin, grace)
        if chance.random() < 0.2:  # the nodes are taken away with the job, one by one
            for node in nodes:
                fleet.at(self._last + chance.uniform(1.0, 60.0), self._take_away, node)

    def _finish(self, begin: float) -> None:
        """Status 0 for all: one that saves long after, or the others that abort when rank 0 has gone."""
        way = self._chance.choice(("together", "one saves", "abort"))
        for rank in range(self._world):
            after = self._chance.uniform(0.0, 10.0)
            if rank == 0:
                self._leave(
                    begin + (self._chance.uniform(20.0, 200.0) if way == "one saves" else 0.0), rank, ENDED_WELL
                )
            elif way == "abort":
                self._leave(begin + 0.3 + after / 3, rank, ABORTED)
            else:
                self._leave(begin + after, rank, ENDED_WELL)

    def _terminate(self, begin: float, grace: float) -> None:
        """SIGTERM for all, and SIGKILL after ``grace``: what the ranks do is their program's way."""
        way = self._chance.choice(("at once", "abort", "all save", "half save", "one saves", "nobody heeds"))
        save = self._chance.uniform(0.1, 1.3) * grace
        first = min(self._latency, key=self._latency.__getitem__)
        for rank in range(self._world):
            told = begin + self._latency[self._node(rank).name]
            saves = {"all save": True, "half save": rank % 2 == 0, "one saves": rank == 0}.get(way, False)
            if way == "nobody heeds" or (saves and save >= grace):
                self._leave(told + grace, rank, KILLED)
            elif saves:
                self._leave(
                    told + save * self._chance.uniform(0.9, 1.0), rank, self._chance.choice((TERMINATED, ENDED_WELL))
                )
            elif way == "abort" and self._node(rank).name != first:
                self._leave(begin + self._latency[first] + self._chance.uniform(*ABORT_SECONDS), rank, ABORTED)
            else:
                self._leave(told + self._chance.uniform(0.0, 0.2), rank, TERMINATED)

    def _node(self, rank: int) -> Node:
        return self._nodes[rank * len(self._nodes) // self._world]

    def _leave(self, seconds: float, rank: int, status: ExitStatus) -> None:
        self._last = max(self._last, seconds)
        self._fleet.at(seconds, self._running.discard, rank)
        self._fleet.at(seconds, self._node(rank).end, self._job_id, rank, UNKNOWN if self._unknown else status)

    def _step(self) -> None:
        if len(self._running) == self._world:
            for rank in range(self._world):
                self._node(rank).progress(self._job_id, rank, self._world)

    def _take_away(self, node: Node) -> None:
        node.is_up, node.answer = False, self._chance.choice((None, TIMEOUT_SECONDS, 0.01))


def batch(number: int, jobs: int) -> tuple[dict[str, str], dict[str, list[float | None]]]:
    """Live through ``jobs`` ends side by side; return their kinds by job id, and the series scraped."""
    chance = random.Random(number)  # noqa: S311  # a benchmark that can be repeated
    homes: list[list[Node]] = []
    for job in range(jobs):
        names = [f"b{number}j{job}n{n}" for n in range(chance.choice((2, 3, 4)))]
        homes.append(
            [
                Node(name, chance.uniform(0.0, 4.9), chance.uniform(-CLOCK_ERROR_SECONDS, CLOCK_ERROR_SECONDS))
                for name in names
            ]
        )
    fleet = Fleet(*(node for home in homes for node in home))
    kinds = {f"b{number}j{job}": KINDS[job % len(KINDS)] for job in range(jobs)}
    for home, (job_id, kind) in zip(homes, kinds.items(), strict=True):
        Ending(fleet, home, job_id, kind, chance)
    return kinds, fleet.run(DURATION_SECONDS)


def judge(folder: Path, number: int, jobs: int) -> Outcome:
    """Put a batch through the shipped rules; return what fired."""
    kinds, series = batch(number, jobs)
    query = 'group by (alertname, severity, job_id) (max_over_time(ALERTS{alertstate="firing",job_id!=""}[1h]))'
    test: dict[str, Any] = {
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": key, "values": values(found)} for key, found in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{DURATION_SECONDS}s", "exp_samples": []}],
    }
    path = folder / f"batch{number}.yml"
    whole = {"rule_files": [str(rule) for rule in RULES], "evaluation_interval": "5s", "tests": [test]}
    path.write_text(yaml.dump(whole, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    done = subprocess.run(["promtool", "test", "rules", path], check=False, capture_output=True, text=True)
    path.unlink()
    said = done.stdout + done.stderr
    found = {(alert, job_id, severity) for alert, job_id, severity in _GOT.findall(said)}
    assert (done.returncode == 0) == (not found), said
    return Outcome(Counter(kinds.values()), Counter((kinds[job], alert, severity) for alert, job, severity in found))
