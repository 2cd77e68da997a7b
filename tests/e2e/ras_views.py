"""RAS in a simulated fleet: what a job's RAS threads would report, read and shown by the exporter's own code.

The network knows who answers and what everybody has launched. An agent asks it as often as the policy says, keeps the
report, tells its rank table of the silences there, and renders all of it into the same series as the exporter.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from agent.sdk.metrics import Admission, Metric
from agent.sdk.ranks import ProcessKey, RankLabel, RasSilence
from exporters.ras.asking.jobs import JobStanding, LocalProcess, OwnedJob
from exporters.ras.asking.monitor import Monitored
from exporters.ras.asking.policy import Pace, Role, Timing, after_query, looks_isolated, next_pace, role_of
from exporters.ras.asking.reports import Reports
from exporters.ras.asking.witness import silences
from exporters.ras.exporter import KEPT_FAILURES, STALE_INTERVALS
from exporters.ras.report.hangs import JobReport
from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import COLLECTIVES, Report
from exporters.ras.show.families import RasSnapshot, render

WORLD_HASH = "0xaaaaaaaaaaaaaa01"
ENDPOINT = "127.0.0.1:28028"
VERSION = "2.30.7"
DEAD_SECONDS = 60.0
"""After so long without an answer a process is dead to all others, for ever."""
QUERIES_AT_ONCE = 3
QUERY_SECONDS = 0.01
WELL = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}

Process = tuple[str, int]
"""Address and pid."""


class RasNetwork:
    """The RAS threads of a job's ranks. ``launched``: AllReduces by rank; ``silent``: since when one says nothing."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.launched = dict.fromkeys(range(world), 0)
        self.places: dict[int, Process] = {}
        self.silent: dict[int, float] = {}
        self._outcast: set[int] = set()

    def join(self, rank: int, place: Process) -> None:
        """Let a process of a rank answer."""
        self.places[rank] = place
        self.silent.pop(rank, None)
        self._outcast.discard(rank)

    def fall_silent(self, rank: int, now: float) -> None:
        """Let a rank answer no more: it left, is stopped, or its node is gone."""
        self.silent.setdefault(rank, now)

    def resume(self, rank: int, now: float) -> None:
        """Let a stopped rank go on: after a minute it stays dead to the others, and they to it."""
        if now - self.silent.pop(rank) >= DEAD_SECONDS:
            self._outcast.add(rank)

    def ask(self, rank: int, now: float) -> Report | None:
        """Return the report of one rank's thread; None when it does not answer."""
        if rank in self.silent:
            return None
        peers = {rank} if rank in self._outcast else self.places.keys() - self._outcast
        answering = peers - self.silent.keys()
        ranks = [self._rank(each) for each in sorted(answering)]
        missing = [self._missing(each, now, lost=each not in peers) for each in sorted(self.places.keys() - answering)]
        world = {"hash": WORLD_HASH, "size": self.world, "ranks": ranks, "missing_ranks": missing}
        body = {"nccl_version": VERSION, "communicators": [world], "ras": {"timeouts_count": 0}}
        return read_json(json.dumps(body).encode())

    def _place(self, rank: int) -> dict[str, Any]:
        host, pid = self.places[rank]
        return {"rank": rank, "host": host, "pid": pid, "nvml_dev": rank % 8}

    def _rank(self, rank: int) -> dict[str, Any]:
        counts = dict.fromkeys(COLLECTIVES, 0) | {"AllReduce": self.launched[rank]}
        return {**self._place(rank), "status": WELL, "collective_counts": counts}

    def _missing(self, rank: int, now: float, *, lost: bool) -> dict[str, Any]:
        dead = lost or now - self.silent[rank] >= DEAD_SECONDS
        return {**self._place(rank), "status": {"unresponsive": True, "considered_dead": dead}}


def families(
    jobs: Iterable[tuple[str, Role]],
    up: dict[str, bool],
    visits: dict[str, tuple[float, int]],
    queries: int,
    reports: dict[str, JobReport],
) -> Iterable[Metric]:
    """Return the exporter's families, of a node with ranks of ``jobs`` and its role in asking each."""
    known = list(jobs)
    snapshot = RasSnapshot(
        up=up,
        visits=visits,
        duration_seconds=None,
        queries=queries,
        errors=Counter(),
        timeouts=0,
        skipped=Counter(),
        listeners={},
        jobs=tuple(
            JobStanding(OwnedJob(job_id), role, None, None if role != "none" else "not_elected")
            for job_id, role in known
        ),
        libraries=frozenset((job_id, "nccl", VERSION) for job_id, _ in known),
        reports=reports,
        heard=Monitored({}, 0, Counter(), Counter(), Counter()),
    )
    return render(snapshot)


class RasAgent:
    """The exporter's part of one node's agent: asks when it is time, and shows what was answered."""

    def __init__(self, network: RasNetwork, job_id: str, chance: random.Random) -> None:
        self._network = network
        self._job_id = job_id
        self._chance = chance
        self._timing: Timing | None = None
        self._pace = Pace()
        self._reports = Reports(Admission())
        self._silences: dict[ProcessKey, RasSilence] = {}
        self._up: bool | None = None
        self._failures = 0
        self._queries = 0

    def look(self, here: Mapping[int, ProcessKey], clock: tuple[float, float]) -> dict[ProcessKey, RasSilence]:
        """Ask if it is time, for the ranks ``here``, at monotonic and epoch seconds; return who is not heard."""
        role = role_of("auto", here.keys(), self._network.world)
        timing = self._timing = self._timing or Timing(clock[0] + self._chance.uniform(0, 10))
        if role != "none" and clock[0] >= timing.due_at:
            answers = self._ask(list(here), clock[0])
            self._up = bool(answers)
            self._failures = 0 if answers else self._failures + 1
            self._pace = next_pace(self._pace, (answers[0], QUERY_SECONDS) if answers else None, 0)
            timing = self._timing = after_query(timing, role, self._pace, clock[0], self._chance.random())
            until = timing.due_at + STALE_INTERVALS * (timing.due_at - clock[0])
            if self._failures <= KEPT_FAILURES:
                self._reports.postpone(OwnedJob(self._job_id), until)
            if answers:
                self._reports.keep(self._owner(here), answers[0], until, clock[1])
                names = {key: self._network.places[rank] for rank, key in here.items()}
                self._silences = silences(self._silences, answers[0], answers[1:], names, clock)
        self._reports.forget({OwnedJob(self._job_id)} if here else set())
        self._reports.expire(clock[0])
        if not self._reports.by_job:
            self._silences = {}
        return self._silences

    def render(self, here: Mapping[int, ProcessKey]) -> Iterable[Metric]:
        """Return the exporter's families, of a node with ranks ``here``."""
        role = role_of("auto", here.keys(), self._network.world)
        up, visits = {}, {}
        if role != "none" and self._up is not None and self._timing is not None:
            up = {ENDPOINT: self._up}
            visits = {self._job_id: (self._timing.due_at - self._timing.asked_at, self._failures)}
        jobs = [(self._job_id, role)] if here else []
        return families(jobs, up, visits, self._queries, self._reports.named({}))

    def _ask(self, ranks: list[int], now: float) -> list[Report]:
        """Ask a process at random, and again while it looks cut off; return the answers, the best one first."""
        answers: list[Report] = []
        for _ in range(QUERIES_AT_ONCE):
            self._queries += 1
            answer = self._network.ask(self._chance.choice(ranks), now)
            if answer is not None:
                answers.append(answer)
            if answer is None or not looks_isolated(answer):
                break
        return sorted(answers, key=Report.missing)

    def _owner(self, here: Mapping[int, ProcessKey]) -> LocalProcess:
        rank, key = next(iter(here.items()))
        return LocalProcess(key, (RankLabel(self._job_id, str(rank)),), self._network.world, key.pid, 0.0)
