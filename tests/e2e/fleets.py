"""A make-believe fleet for rule tests: real rank tables under a clock of ours, scraped as Prometheus would.

What the tables show becomes the input of `promtool test rules`, series by series, with staleness where a scrape fails
or no longer holds a series. Each node is scraped at its own instant, up to five seconds before the others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

from agent import rank_families
from agent.identity import Membership, Origin, ProcessKey
from agent.procfs import ProcessFacts
from agent.ranks import RankTable
from agent.verdict import ExitStatus

SCRAPE_SECONDS = 5
WORLD = "aaaaaaaaaaaaaa"
JOB = "4711"
REFUSED_SECONDS = 0.01
TIMEOUT_SECONDS = 4.0
WARM_SECONDS = 20
"""Ranks are found this long before the first scrape, so that all are bound in it."""

TERMINATED = ExitStatus(known=True, signal=SIGTERM)
KILLED = ExitStatus(known=True, signal=SIGKILL)
ABORTED = ExitStatus(known=True, signal=SIGABRT)
OOM_KILLED = ExitStatus(known=True, signal=SIGKILL, oom=True)
ENDED_WELL = ExitStatus(known=True)
UNKNOWN = ExitStatus(known=False)


def crashed() -> ExitStatus:
    """Return the status of a rank that SIGSEGV ended."""
    return ExitStatus(known=True, signal=SIGSEGV)


def failed(code: int) -> ExitStatus:
    """Return the status of a program that left with ``code``."""
    return ExitStatus(known=True, code=code)


class _Clock:
    """Seconds since the first scrape, on a clock that may be wrong."""

    def __init__(self, error_seconds: float) -> None:
        self.now = -float(WARM_SECONDS)
        self._error = error_seconds

    def monotonic(self) -> float:
        return self.now + 10_000.0

    def time(self) -> float:
        return self.now + self._error


class Node:
    """A node, its agent's table, and how scrapes of it go."""

    def __init__(self, name: str, late_seconds: float, clock_error_seconds: float = 0.0) -> None:
        self.name = name
        self.late_seconds = late_seconds
        self._clock = _Clock(clock_error_seconds)
        self.table = RankTable(self._clock, name)
        self.processes: dict[tuple[str, int], ProcessKey] = {}
        self.answer: float | None = 0.01
        """How long a scrape takes; None: it is no target any more."""
        self.is_up = True
        self.stopped = False
        self._pid = 100

    def start(self, job_id: str, rank: int, world: int, start_seconds: float, name: str = "") -> None:
        """Start a rank (in the table's eyes: find its process)."""
        self._pid += 1
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "SLURM_JOB_ID": job_id, "SLURM_JOB_NAME": name}
        environment |= {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
        key = ProcessKey(self._pid, self._pid)
        self.table.observe_process(ProcessFacts(key, start_seconds, self._pid, "alice", "thread", environment))
        self.processes[(job_id, rank)] = key

    def end(self, job_id: str, rank: int, status: ExitStatus, finalized: bool = False) -> None:
        """Let a rank leave."""
        key = self.processes.pop((job_id, rank))
        if finalized:
            self.table.observe_state(key, "S", None, kill_pending=False, finalized=True)
        self.table.observe_exit(key, status)

    def stop(self, job_id: str, rank: int) -> None:
        """Let a rank be stopped by a signal."""
        self.table.observe_state(self.processes[(job_id, rank)], "T", None, kill_pending=False, finalized=False)
        self.stopped = True

    def progress(self, job_id: str, rank: int, world: int) -> None:
        """Let a rank complete an operation now."""
        key = self.processes[(job_id, rank)]
        origin = Origin(64, key.pid, 0, self.name, key.pid)
        self.table.observe_records(origin, [Membership(WORLD, rank, world)], self._clock.time())
        self.table.link(origin, key)

    def restart_agent(self) -> None:
        """Start the agent anew from its checkpoint: ranks are shown again once they are confirmed."""
        saved = self.table.dump()
        self.table = RankTable(self._clock, self.name)
        self.table.load(saved)
        for key in self.processes.values():
            self.table.confirm(key)

    def reboot(self) -> None:
        """Come back with nothing: no process, no checkpoint of this boot."""
        self.processes.clear()
        self.table = RankTable(self._clock, self.name)

    def advance(self, now: float) -> None:
        """Go on to ``now``; the table is looked at once a second."""
        self._clock.now = now
        if now == int(now):
            self.table.tick()

    def scrape(self) -> dict[str, float]:
        """Return what a scrape gives now, by series."""
        if self.answer is None:
            return {}
        own = (("instance", f"{self.name}:19028"), ("job", "rankwatch-liveness"), ("node", self.name))
        found = {series_key("up", own): float(self.is_up), series_key("scrape_duration_seconds", own): self.answer}
        if self.is_up:
            for family in rank_families.families(self.table.snapshot()):
                for sample in family.samples:
                    found[series_key(sample.name, (*sample.labels.items(), *own))] = sample.value
        return found


def series_key(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return a series as promtool reads it."""
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels)}}}"


class Fleet:
    """Nodes under one clock, and what is to happen to them when."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, seconds: float, action: Callable[..., object], *arguments: object) -> None:
        """Let something happen at a time."""
        self._events.append((seconds, len(self._events), lambda: action(*arguments)))

    def every(self, begin: float, end: float, step: float, action: Callable[..., object], *arguments: object) -> None:
        """Let something happen again and again."""
        now = begin
        while now < end:
            self.at(now, action, *arguments)
            now += step

    def run(self, duration_seconds: int) -> dict[str, list[float | None]]:
        """Live through it; return each series' value at each scrape, None where there is none."""
        slots = duration_seconds // SCRAPE_SECONDS + 1
        series: dict[str, list[float | None]] = {}
        for slot in range(slots):
            for node in self.nodes:
                self.at(slot * SCRAPE_SECONDS - node.late_seconds, self._scrape, node, slot, slots, series)
        for second in range(-WARM_SECONDS, duration_seconds + 1):
            self.at(second, lambda: None)
        begun = -float("inf")
        for seconds, _, action in sorted(self._events, key=lambda event: event[:2]):
            if seconds > begun:
                for node in self.nodes:
                    node.advance(seconds)
                begun = seconds
            action()
        return series

    @staticmethod
    def _scrape(node: Node, slot: int, slots: int, series: dict[str, list[float | None]]) -> None:
        for name, value in node.scrape().items():
            series.setdefault(name, [None] * slots)[slot] = value


class Job(Fleet):
    """A job on two nodes of three, scraped at random instants by clocks that are a little wrong."""

    def __init__(self, seed: int, world: int = 16, age_seconds: float = 900.0) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # a test that can be repeated
        self.world = world
        self.running: dict[int, Node] = {}
        chance = self.chance.uniform
        super().__init__(*(Node(f"n{number}", chance(0, 4.9), chance(-0.02, 0.02)) for number in range(3)))
        for rank in range(world):
            self.at(-20, self._start, rank, self.home(rank), -age_seconds)
        self.every(-5, 2000, 2.5, self._step)

    def home(self, rank: int) -> Node:
        """Where a rank runs: half of them on each of two nodes."""
        return self.nodes[rank * 2 // self.world]

    def start(self, seconds: float, rank: int, node: Node) -> None:
        """Start a rank (anew)."""
        self.at(seconds, self._start, rank, node, seconds - 1)

    def end(self, seconds: float, rank: int, status: ExitStatus, finalized: bool = False) -> None:
        """Let a rank leave."""
        self.at(seconds, self._end, rank, status, finalized)

    def end_all(self, begin: float, spread: float, status: ExitStatus, but: tuple[int, ...] = ()) -> None:
        """Let all ranks leave within ``spread`` seconds."""
        for rank in range(self.world):
            if rank not in but:
                self.end(begin + self.chance.uniform(0, spread), rank, status)

    def agent(self, seconds: float, node: Node, up: bool, answer: float | None = 0.02) -> None:
        """Change how scrapes of a node's agent go."""
        self.at(seconds, self._agent, node, up, answer)

    def lose(self, seconds: float, node: Node, answer: float | None) -> None:
        """Let a node vanish with its ranks; ``answer``: how a scrape fails from then on."""
        self.at(seconds, self.running.pop, next(r for r in range(self.world) if self.home(r) is node))
        self.agent(seconds, node, up=False, answer=answer)

    def _start(self, rank: int, node: Node, start_seconds: float) -> None:
        node.start(JOB, rank, self.world, start_seconds)
        self.running[rank] = node

    def _end(self, rank: int, status: ExitStatus, finalized: bool) -> None:
        node = self.running.pop(rank, None) or self.home(rank)
        node.end(JOB, rank, status, finalized)

    def _agent(self, node: Node, up: bool, answer: float | None) -> None:
        node.is_up, node.answer = up, answer

    def _step(self) -> None:
        """A collective completes when all ranks take part."""
        if len(self.running) == self.world and not any(node.stopped for node in self.nodes):
            for rank, node in self.running.items():
                node.progress(JOB, rank, self.world)


def values(samples: list[float | None]) -> str:
    """Return samples as promtool reads them: `stale` where a series ends, `_` where there is none."""
    words: list[str] = []
    for number, sample in enumerate(samples):
        if sample is not None:
            words.append(repr(sample))
        else:
            words.append("stale" if number and samples[number - 1] is not None else "_")
    return " ".join(words)


def as_test(
    name: str, series: dict[str, list[float | None]], expected: dict[str, str], at_seconds: int
) -> dict[str, Any]:
    """Return a promtool test: these alerts (name: severity) fired in ``at_seconds``, one series each, and no other."""
    query = 'count by (alertname, severity) (max_over_time(ALERTS{alertstate="firing"}[1h]))'
    samples = [
        {"labels": f'{{alertname="{alert}",severity="{severity}"}}', "value": 1} for alert, severity in expected.items()
    ]
    return {
        "name": name,
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": key, "values": values(found)} for key, found in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{at_seconds}s", "exp_samples": samples}],
    }
