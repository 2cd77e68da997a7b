"""A simulated fleet for rule tests: real rank tables under a clock of ours, scraped as Prometheus would.

What the tables show becomes the input of `promtool test rules`, series by series, with staleness where a scrape fails
or no longer holds a series. Each node is scraped at its own instant, up to five seconds before the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

from client_metrics import samples
from ras_views import RasAgent

from agent.app.health_part import causes
from agent.core.identity import Membership, ProcessKey, WriterKey
from agent.hardware.ledger import NODE, HealthLedger
from agent.ranks import families as rank_families, health, liveness_page
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.table import RankTable
from agent.sdk.metrics import Metric
from exporters.inspector.families import SEEN_RECORDS

SCRAPE_SECONDS = 5
TICKS_PER_SECOND = 100
RECORDS_PER_STEP = 20
REST_SLOTS = 3
"""All but liveness is scraped every 15 seconds."""
LIVENESS, REST = "rankwatch-liveness", "rankwatch"
WORLD = "aaaaaaaaaaaaaa"
JOB = "4711"
REFUSED_SECONDS = 0.01
TIMEOUT_SECONDS = 4.0
WARM_SECONDS = 20
"""Ranks are found this long before the first scrape, so that all are bound in it."""

TERMINATED = ExitStatus(known=True, signal=SIGTERM)
KILLED = ExitStatus(known=True, signal=SIGKILL)
ABORTED = ExitStatus(known=True, signal=SIGABRT)
ENDED_WELL = ExitStatus(known=True)
UNKNOWN = ExitStatus(known=False)


def crashed() -> ExitStatus:
    """Return the status of a rank that SIGSEGV ended."""
    return ExitStatus(known=True, signal=SIGSEGV)


def failed(code: int) -> ExitStatus:
    """Return the status of a program that left with ``code``."""
    return ExitStatus(known=True, code=code)


def monotonic(seconds: float) -> float:
    """Return a time of the fleet on the clock that does not jump."""
    return seconds + 10_000.0


class _Clock:
    """Seconds since the first scrape, on a clock that may be wrong."""

    def __init__(self, error_seconds: float) -> None:
        self.now = -float(WARM_SECONDS)
        self.error_seconds = error_seconds

    def monotonic(self) -> float:
        return monotonic(self.now)

    def time(self) -> float:
        return self.now + self.error_seconds


class Node:
    """A node, its agent's table, and how scrapes of it go."""

    def __init__(self, name: str, late_seconds: float, clock_error_seconds: float = 0.0) -> None:
        self.name = name
        self.late_seconds = late_seconds
        self._clock = _Clock(clock_error_seconds)
        self._begin()
        self.processes: dict[tuple[str, int], ProcessKey] = {}
        self.answer: float | None = 0.01
        """How long a scrape takes; None: it is no target any more."""
        self.is_up = True
        self.ras: RasAgent | None = None
        self.records: Counter[tuple[str, int]] = Counter()
        """Those of each rank."""
        self.stopped: set[int] = set()
        self._pid = 100

    def set_clock_error(self, seconds: float) -> None:
        """Let the node's clock be ahead by so much from now on."""
        self._clock.error_seconds = seconds

    def start(self, job_id: str, rank: int, world: int, start_seconds: float, name: str = "") -> None:
        """Start a rank (in the table's eyes: find its process)."""
        self._pid += 1
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "SLURM_JOB_ID": job_id, "SLURM_JOB_NAME": name}
        environment |= {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
        key = ProcessKey(self._pid, int(monotonic(start_seconds - self._clock.error_seconds) * TICKS_PER_SECOND))
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
        self.stopped.add(rank)

    def resume(self, job_id: str, rank: int) -> None:
        """Let a stopped rank go on."""
        self.table.observe_state(self.processes[(job_id, rank)], "S", None, kill_pending=False, finalized=False)
        self.stopped.remove(rank)

    def break_down(self) -> None:
        """Let the kernel tell of memory that is broken."""
        self.ledger.of("kernel_log").latch(NODE, "machine_check")

    def progress(self, job_id: str, rank: int, world: int) -> None:
        """Let a rank complete a step's operations now."""
        self.records[job_id, rank] += RECORDS_PER_STEP
        key = self.processes[(job_id, rank)]
        writer_key = WriterKey(64, key.pid, 0, self.name, key.pid)
        self.table.observe_records(writer_key, [Membership(WORLD, rank, world)], self._clock.time())
        self.table.link(writer_key, key)

    def restart_agent(self) -> None:
        """Start the agent anew from its checkpoint: ranks are shown again once they are confirmed."""
        saved, found = self.table.dump(), self.ledger.dump()
        self._begin()
        self.table.load(saved)
        self.ledger.load(found)
        for key in self.processes.values():
            self.table.confirm(key)

    def advance(self, now: float) -> None:
        """Go on to ``now``; the table is looked at once a second."""
        self._clock.now = now
        if now == int(now):
            if self.ras is not None and self.is_up:
                clock = (self._clock.monotonic(), self._clock.time())
                self.table.observe_silences(self.ras.look(self._ranks(), clock))
            self.table.tick()

    def scrape(self, slot: int) -> dict[str, float]:
        """Return what a scrape gives now, by series."""
        if self.answer is None:
            return {}
        found = {
            series_key("up", self._target(LIVENESS)): float(self.is_up),
            series_key("scrape_duration_seconds", self._target(LIVENESS)): self.answer,
        }
        if self.is_up:
            found |= self._page(self.liveness(), LIVENESS)
            # a sample's time is its scrape's, here as promtool has it
            found[series_key("rankwatch_node_time_seconds", self._target(LIVENESS))] = (
                slot * SCRAPE_SECONDS + self._clock.error_seconds
            )
        return found

    def liveness(self) -> list[Metric]:
        """Return what the agent shows of its ranks and their health."""
        known = self._health()
        of_ranks = [*rank_families.families(known.ranks), *liveness_page.families(known.ranks)]
        return [*of_ranks, *health.families(known)]

    def scrape_rest(self) -> dict[str, float]:
        """Return what a scrape of the other job gives, which is rarer."""
        if not self.is_up or self.answer is None:
            return {}
        records = SEEN_RECORDS.rows()
        for (job_id, rank), number in self.records.items():
            records.add((job_id, str(rank)), number)
        asked = [] if self.ras is None else self.ras.render(self._ranks())
        return self._page([*asked, records.metric], REST)

    def _begin(self) -> None:
        self.table, self.ledger = RankTable(self._clock, self.name), HealthLedger(self._clock)
        self.table.liveness.facts.hardware = partial(causes, self._health, self.ledger.has_failed)

    def _health(self) -> health.HealthSnapshot:
        counted = health.counted_checks((), ())
        return health.HealthSnapshot(self.table.snapshot(), self.ledger.entries(), counted, self.ledger.refused)

    def _page(self, families: Iterable[Metric], job: str) -> dict[str, float]:
        own = self._target(job)
        return {series_key(sample.name, (*sample.labels.items(), *own)): sample.value for sample in samples(families)}

    def _target(self, job: str) -> tuple[tuple[str, str], ...]:
        return ("instance", f"{self.name}:19028"), ("job", job), ("node", self.name)

    def _ranks(self) -> dict[int, ProcessKey]:
        return {rank: key for (_, rank), key in self.processes.items()}


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
        rest = node.scrape_rest() if slot % REST_SLOTS == 0 else {}
        for name, value in {**node.scrape(slot), **rest}.items():
            series.setdefault(name, [None] * slots)[slot] = value


def values(samples: list[float | None], every: int = 1) -> str:
    """Return each ``every``-th sample as promtool reads it: `stale` where a series ends, `_` where there is none."""
    words: list[str] = []
    for number in range(0, len(samples), every):
        sample = samples[number]
        if sample is not None:
            words.append(repr(sample))
        else:
            words.append("stale" if number and samples[number - every] is not None else "_")
        words += ["_"] * (every - 1)
    return " ".join(words)


def as_test(
    name: str, series: dict[str, list[float | None]], expected: dict[str, str], at_seconds: int
) -> dict[str, Any]:
    """Return a promtool test: these alerts (name: severity) fired in ``at_seconds``, and no other.

    Each has one series, or one for each rank that a job waits for.
    """
    fired = 'max_over_time(ALERTS{alertstate="firing",why%s""}[1h])'
    one = f"{fired % '='} or group by (alertname, severity, job_id) ({fired % '!='})"
    query = f"count by (alertname, severity) ({one})"
    samples = [
        {"labels": f'{{alertname="{alert}",severity="{severity}"}}', "value": 1} for alert, severity in expected.items()
    ]
    return {
        "name": name,
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": key, "values": values(found, _slots(key))} for key, found in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{at_seconds}s", "exp_samples": samples}],
    }


def _slots(key: str) -> int:
    return REST_SLOTS if f'job="{REST}"' in key else 1
