"""What people are told when jobs of a real Slurm end: its scripts, an agent, Prometheus and Alertmanager as shipped."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agents import Agent
from alerting import Alertmanager, Inbox, to_inbox
from nodes import wait_until
from paging import FULL, why_no_pages
from prometheus import Prometheus
from slurm import HIGH, LOW, START_SECONDS, idle_rank, why_no_slurm
from slurm_site import Site
from watches import SCRAPED_SECONDS, Page, Watch, build_rules, prometheus_config

WHY_NOT = why_no_slurm() or why_no_pages()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
    pytest.mark.timeout(900),
]

EVERY_JOB = {"page_lived": "long|short", "page_ranks": 1}
WORD_SECONDS = 40.0
"""From a job's end until there is a word on it: KillWait, the epilog's start, its wait, and a busy machine."""
LIMIT_SECONDS = 150.0
"""Slurm counts limits in minutes, and looks at them every half."""
QUIET_SECONDS = 75.0
"""Longer than the death of a rank takes to be told."""


class Run(NamedTuple):
    """A running job. ``end``: a file whose making ends its ranks; ``ranks``: of one Slurm job, an array's has less."""

    job_id: str
    end: Path
    begun_seconds: float = 0.0


class Case(NamedTuple):
    """How a job ends. ``tells``: what the scheduler's word is, empty where none is expected to stay."""

    title: str
    act: Callable[[Site, Agent, Run], None]
    tells: str = ""
    pages: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--ntasks=2",)
    status: int | None = None
    seconds: float = WORD_SECONDS


def leave(_: Site, __: Agent, run: Run) -> None:
    """Its ranks leave."""
    run.end.touch()


def crash(site: Site, agent: Agent, run: Run) -> None:
    """One of its ranks crashes."""
    [info] = agent.samples("rankwatch_rank_info", rank="1", job_id=run.job_id)
    site.slurm.node.kill(int(info.labels["pid"]), signal.SIGSEGV)


def cancel(site: Site, _: Agent, run: Run) -> None:
    """Its user cancels it."""
    site.slurm.cancel(run.job_id)


def requeue(site: Site, _: Agent, run: Run) -> None:
    """An operator requeues it."""
    site.slurm.ask("scontrol", "requeue", run.job_id)


def preempt(site: Site, _: Agent, __: Run) -> None:
    """A job of a better partition takes its place, for good."""
    site.slurm.submit("srun sleep infinity", "--ntasks=1", f"--partition={HIGH}", "--exclusive")


def wait(_: Site, __: Agent, ___: Run) -> None:
    """Slurm does it."""


ROUNDS: tuple[dict[str, Case], ...] = (
    {
        "ok": Case("All ranks leave with status 0", leave, "UNKNOWN"),
        "exit": Case("Ranks leave with status 7 (srun -K)", leave, "FAILED", ("RankDead",), ("failed",), status=7),
        "crash": Case("A rank crashes by SIGSEGV (srun -K)", crash, "FAILED", ("RankDead",), ("crashed", "rank 1")),
        "cancelled": Case("scancel; ranks leave with status 1 at SIGTERM", cancel, "CANCELLED", status=1),
    },
    {
        "array": Case("An array of two, cancelled", cancel, "CANCELLED", options=("--ntasks=1", "--array=0-1")),
        "requeued": Case("scontrol requeue; it runs again", requeue, options=("--ntasks=2", "--requeue")),
        "limit": Case(
            "Its time limit", wait, "TIMEOUT", options=("--ntasks=2", "--time=1"), status=1, seconds=LIMIT_SECONDS
        ),
    },
    {
        "preempted": Case("Preempted; it waits to run again", preempt, "REQUEUED", options=("--ntasks=2", "--requeue")),
    },
)
USED = ROUNDS if FULL else ROUNDS[:1]


class Outcome(NamedTuple):
    """What came of a case: the words of the scheduler, the states that ranks were in, and notifications by age."""

    words: set[str]
    states: set[str]
    pages: list[tuple[float, Page]]
    infos: list[tuple[float, Page]]


class Told:
    """A site where jobs end, and who watches it."""

    def __init__(self, site: Site, agent: Agent, watch: Watch) -> None:
        self.site = site
        self.agent = agent
        self.watch = watch
        self.outcomes: dict[str, Outcome] = {}

    def play(self, cases: dict[str, Case]) -> None:
        """Let these jobs run, and end, all at once; then wait for what is told."""
        runs = {name: self.begin(name, case) for name, case in cases.items()}
        ids = {name: self.jobs_of(run, cases[name]) for name, run in runs.items()}
        begun = {}
        words: dict[str, set[str]] = {}
        states: dict[str, set[str]] = {}
        for name, run in runs.items():
            begun[name] = time.time()
            cases[name].act(self.site, self.agent, run)
        for name, case in cases.items():
            wait_until(lambda name=name, case=case: self.is_told(ids[name], case), case.seconds, f"the end of {name}")
            words[name], states[name] = self.words(ids[name]), self.states(ids[name])
        time.sleep(QUIET_SECONDS)  # nothing is told: there is nothing to wait for
        for name in cases:
            found = [(page.time - begun[name], page) for job_id in ids[name] for page in self.watch.pages(job_id)]
            infos = [
                (page.time - begun[name], page)
                for job_id in ids[name]
                for receiver in ("ticket", "info")
                for page in self.watch.pages(job_id, receiver)
            ]
            self.outcomes[name] = Outcome(words[name], states[name], found, infos)
        self.site.slurm.cancel_all()

    def is_told(self, job_ids: list[str], case: Case) -> bool:
        """Check for the scheduler's word, and that it has made nobody dead of those whose end is no fault."""
        told = self.words(job_ids) == ({case.tells} if case.tells else set())
        return told and (bool(case.pages) or "dead" not in self.states(job_ids))

    def begin(self, name: str, case: Case) -> Run:
        """Submit a job, and wait until Prometheus has seen its ranks."""
        end = self.site.directory / f"end-{name}"
        command = f"srun --kill-on-bad-exit {shlex.join(idle_rank(end=end, status=case.status))}"
        run = Run(self.site.slurm.submit(command, f"--partition={LOW}", *case.options), end)
        for job_id in self.jobs_of(run, case):
            up = f'count(rankwatch_rank_up{{job_id="{job_id}"}} == 1)'
            ranks = 1 if "--array=0-1" in case.options else 2
            wait_until(
                lambda up=up, ranks=ranks: self.watch.prometheus.value(up) == ranks,
                START_SECONDS + SCRAPED_SECONDS,
                f"the ranks of {name}",
            )
        return run

    def jobs_of(self, run: Run, case: Case) -> list[str]:
        """Return the ids of Slurm's jobs: an array has as many as tasks."""
        if "--array=0-1" not in case.options:
            return [run.job_id]
        asked = ("squeue", "--noheader", f"--job={run.job_id}", "--array", "--states=RUNNING", "--format=%A")
        found = wait_until(
            lambda: lines if len(lines := self.site.slurm.ask(*asked).split()) == 2 else None,
            START_SECONDS,
            "both tasks",
        )
        return list(found)

    def words(self, job_ids: list[str]) -> set[str]:
        """Return what the scheduler said of these jobs."""
        ends = self.agent.samples("rankwatch_job_end_info")
        return {each.labels["state"] for each in ends if each.labels["job_id"] in job_ids}

    def states(self, job_ids: list[str]) -> set[str]:
        """Return the states that their ranks are in."""
        ranks = self.agent.samples("rankwatch_rank_state")
        return {each.labels["state"] for each in ranks if each.labels["job_id"] in job_ids}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Provide what came of all cases."""
    directory = tmp_path_factory.mktemp("ends")
    home = directory / "site"
    home.mkdir()
    site = Site(home)
    targets = directory / "targets"
    targets.mkdir()
    sections: dict[str, Any] = {
        "inspector": {"paths": [str(directory / "nothing")]},
        "jobs": {"directory": str(site.jobs)},
    }
    rules = build_rules(directory, EVERY_JOB, {})
    with site.slurm, Agent(directory, {"exporters": sections}, node=site.slurm.node) as agent:
        (home / "address").write_text(f"127.0.0.1:{agent.port}\n")
        (targets / "n0.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        node = site.slurm.node
        with Inbox(node) as inbox:
            alertmanager = Alertmanager(directory / "alertmanager", to_inbox(inbox), node)
            config = prometheus_config(targets, rules, alertmanager.port)
            with Prometheus(directory / "prometheus", config, node=node) as prometheus:
                this = Told(site, agent, Watch("whole", [prometheus], [alertmanager], inbox, directory / "lost"))
                for cases in USED:
                    this.play(cases)
                yield this


@pytest.mark.parametrize("name", [name for cases in USED for name in cases])
def test_the_end_of_a_job_is_told(told: Told, name: str) -> None:
    """A crash and a failing status page once, naming the rank; whatever the scheduler or its user ends pages nobody."""
    [case] = [cases[name] for cases in ROUNDS if name in cases]
    found = told.outcomes[name]
    row = (case.title, sorted(found.words), sorted(found.states), [(round(s), page.names) for s, page in found.pages])
    print(row, [(round(s), page.names) for s, page in found.infos])  # noqa: T201  # for the table in docs/ends.md
    assert found.words == ({case.tells} if case.tells else set()), row
    assert tuple(name for _, page in found.pages for name in page.names) == case.pages, row
    assert all(page.says(*case.says) for _, page in found.pages)
    assert ("dead" in found.states) == bool(case.pages), row
