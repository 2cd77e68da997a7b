"""`rankwatch explain` and `rankwatch job` on a real Prometheus with the shipped rules: a running job with failures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from agents import Agent
from full import full
from jobs import SimulatedJob
from machines import Machine, alive
from nodes import wait_until
from ports import free_port
from prometheus import ROOT, Prometheus, why_no_prometheus
from rules import build_rules, prometheus_config

from agent.evidence.summary import Event, RankAtTime, Summary, Word

pytestmark = [
    full,
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(240),
]
KEPT = os.environ.get("RANKWATCH_KEEP_EXPLAINED", "")
"""A directory for the pages of docs/explain.md."""


class Site(NamedTuple):
    """A job of four ranks, its agent, and the Prometheus that scrapes it."""

    machine: Machine
    job: SimulatedJob
    agent: Agent
    job_id: str
    prometheus: Prometheus

    def explained(self, *more: str, command: str = "explain") -> tuple[int, str]:
        """Return exit status and output."""
        where = f"http://127.0.0.1:{self.prometheus.port}"
        command_line = [sys.executable, "-m", "agent", command, self.job_id, "--prometheus", where, *more]
        done = subprocess.run(command_line, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.stderr == ""
        return done.returncode, done.stdout

    def wait_for(self, words: str, seconds: float = 90.0) -> str:
        """Wait until the page has these words, check that the page of a second call has them, and return the page."""
        wait_until(lambda: words in self.explained()[1], seconds, words)
        status, page = self.explained()
        assert status == 0
        assert words in page, page
        return page


@contextmanager
def site(tmp_path: Path, *options: str) -> Iterator[Site]:
    """Provide the site, with all four ranks in the rules' series."""
    targets = tmp_path / "targets"
    targets.mkdir()
    rules = build_rules(tmp_path, {"page_ranks": 2, "page_lived": "long|short"})
    machine = Machine(tmp_path)
    dumps = tmp_path / "dumps"
    started = ("--ranks", "4", "--dump-dir", str(dumps), *options)
    evidence = {"evidence": {"path": str(tmp_path / "evidence")}}
    with machine.job(*started) as job, machine.agent(dump_dir=dumps, exporters=evidence) as agent:
        agent.wait_for_states(alive(4))
        job_id = agent.samples("rankwatch_job_info")[0].labels["job_id"]
        (targets / "n.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        with Prometheus(tmp_path / "prometheus", prometheus_config(targets, rules, free_port())) as prometheus:
            made = Site(machine, job, agent, job_id, prometheus)
            # Each rule group has its own interval; the group that counts GPUs runs once a minute.
            gpus = f'job:rankwatch_gpus:count{{job_id="{job_id}"}} == 4'
            known = f"{gpus} and on (job_id) job:rankwatch_silence:seconds offset 20s"
            wait_until(lambda: prometheus.value(f"{known} and on (job_id) rankwatch_job_ranks"), 120, "the job")
            yield made


def again(made: Site, *options: str) -> SimulatedJob:
    """Return the job's second run, under the same id."""
    dumps = str(made.machine.directory / "dumps")
    return made.machine.job("--ranks", "4", "--dump-dir", dumps, *options, name="again")


def keep(name: str, page: str) -> None:
    """Save a page if a directory is given."""
    if KEPT:
        (Path(KEPT) / f"{name}.txt").write_text(page)


def test_a_killed_rank(tmp_path: Path) -> None:
    """After a SIGKILL `explain` shows rank, signal, node and cost, equal at each call; before, it shows no incident."""
    with site(tmp_path) as made:
        status, page = made.explained()
        assert status == 0
        assert "no rank died, hung, was late or lost its hardware" in page
        status, short = made.explained(command="job")
        assert status == 0
        assert "now: 4 alive" in short
        assert "4 ranks without trouble" in short
        pid = made.job.pid(2)
        made.job.kill(pid)
        page = made.wait_for("RankDead")
        keep("killed", page)
        wait_until(lambda: made.explained(command="job")[0] == 1, 30.0, "the dead rank in Prometheus")
        _, short = made.explained(command="job")
        assert "first to go: rank 2 " in short
        assert f"2     127.0.0.1  dead   {pid}" in short
        assert re.search(rf"\n  rank 2 \(127\.0\.0\.1,.*pid {pid}\): ", page), page
        assert "killed (SIGKILL)" in page
        assert re.search(r"\n  [0-9.]+ GPU-hours  no work done for ", page), page
        assert "#rankdead" in page
        status, page = made.explained("--evidence", str(tmp_path / "evidence"))
        assert status == 0
        assert "rank 2  killed (SIGKILL): first to go\n" in page
        assert "evidence bundle taken (dead: rank 2 is dead)" in page
        assert "Not used" not in page
        until = str(int(made.prometheus.value("vector(time())") or 0))
        assert made.explained("--until", until) == made.explained("--until", until)
        file = tmp_path / "page.html"
        assert made.explained("--html", str(file)) == (0, "")
        assert "killed (SIGKILL)" in file.read_text()


def test_a_crash_and_a_restart(tmp_path: Path) -> None:
    """The time line has the crash and the restart; the page also has the contradicting statement of a bundle."""
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    with site(tmp_path, "--teardown", "torchrun") as made:
        made.job.kill(made.job.pid(3), signal.SIGSEGV)
        made.job.wait_for("exited", rank=0)
        at = made.prometheus.value("vector(time())") or 0.0
        (evidence / "n.json").write_bytes(msgspec.json.encode(contradiction(made.job_id, at)))
        (evidence / "cut.json").write_text("{")
        made.wait_for("crashed (SIGSEGV): first to go")
        with again(made):
            made.wait_for("; it works again since ")
            status, page = made.explained("--evidence", str(evidence))
        assert status == 0
        keep("restarted", page)
        assert re.search(r"\n  rank 3 \(127\.0\.0\.1,[^)]*\): 1 of 2 witnesses agree", page), page
        assert re.search(r"Disagrees\n +job log +rank 0 +its log has cuda error \(bundle of 127.0.0.1\)", page), page
        assert "all ranks restarted" in page
        assert "cut.json: " in page


def contradiction(job_id: str, at: float) -> Summary:
    """Return a bundle's summary with a job log that blames rank 0."""
    return Summary(
        format=1,
        job_id=job_id,
        node="127.0.0.1",
        taken_at=at,
        trigger="dead",
        because="rank 3 died of SIGSEGV",
        version="0",
        ranks=[RankAtTime("0", 1, "alive", at), RankAtTime("3", 2, "dead", at)],
        words=[
            Word("3", "verdict", "crashed (SIGSEGV)", blames=True),
            Word("0", "job_log", "its log has cuda error", blames=True),
        ],
        suspects=["3"],
        timeline=[Event(at - 1, "3", "segfault at 10 ip 00007f in libcuda.so", "kernel log")],
        parts=[],
    )


def test_a_stopped_rank(tmp_path: Path) -> None:
    """`explain` names a stopped rank as the one that the job waits for; after SIGCONT the incident has an end."""
    with site(tmp_path) as made:
        pid = made.job.pid(1)
        made.job.kill(pid, signal.SIGSTOP)
        page = made.wait_for("RankUnresponsive", 150)
        keep("stopped", page)
        assert "the job hung" in page
        assert re.search(rf"\n  rank 1 \(127\.0\.0\.1,.*pid {pid}\): ", page), page
        assert "no work since" in page
        made.job.kill(pid, signal.SIGCONT)
        page = made.wait_for("; it works again since ")
        keep("continued", page)
        assert "and it goes on" not in page
        assert "rank 1 (" in page
