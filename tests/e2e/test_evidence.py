"""Bundles of evidence by a real agent about real processes: killed, stopped, on request, on a full disk."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from full import full
from jobs import ROOT, SimulatedJob
from machines import Machine, alive
from nodes import wait_until
from slow_files import hung_directory

BUNDLE_SECONDS = 25.0
"""Time from the event to the bundle."""
SCRAPE_SECONDS = 0.3
RANKS = 4
VICTIM = 2
PLANTED = "planted-do-not-keep"


def watched(machine: Machine, job: SimulatedJob, folder: Path) -> Agent:
    """Start an agent that writes its bundles into ``folder``."""
    sections: dict[str, Any] = {
        "inspector": {"paths": [str(job.dump_dir)]},
        "evidence": {"path": str(folder), "minutes_between": 1},
    }
    return Agent(machine.directory, {"exporters": sections}, job_id=machine.job_id)


def bundles(folder: Path) -> list[Path]:
    """Return the bundles in a directory."""
    return sorted(folder.glob("*.tar.gz"))


def evidence(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rankwatch evidence`."""
    command = [sys.executable, "-m", "agent", "evidence", "--path", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def slowest_scrape(agent: Agent, seconds: float) -> float:
    """Scrape for ``seconds``; return the seconds of the slowest scrape."""
    slowest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.port}/metrics", timeout=10) as answer:
            answer.read()
        slowest = max(slowest, time.monotonic() - began)
    return slowest


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGSEGV, "crashed (SIGSEGV)"), pytest.param(signal.SIGSTOP, "stopped by a signal", marks=full)],
)
def test_a_bundle_names_the_culprit(tmp_path: Path, number: signal.Signals, says: str) -> None:
    """Within 25 s of a rank's crash or stop a bundle names the rank and has the other processes."""
    machine = Machine(tmp_path)
    folder = tmp_path / "evidence"
    with machine.job("--ranks", str(RANKS), env={"MY_TOKEN": PLANTED}) as job, watched(machine, job, folder) as agent:
        agent.wait_for_states(alive(RANKS))
        began = time.monotonic()
        job.kill(job.pid(VICTIM), number)
        wait_until(lambda: bundles(folder), BUNDLE_SECONDS, "a bundle")
        assert time.monotonic() - began < BUNDLE_SECONDS
        shown = evidence(folder, "show", machine.job_id)
        with tarfile.open(bundles(folder)[0]) as archive:
            files = {each.name: (archive.extractfile(each) or sys.stdin.buffer).read() for each in archive}
        job.kill(job.pid(VICTIM), signal.SIGCONT) if number == signal.SIGSTOP else None
    assert re.search(rf"^Suspects\n  rank {VICTIM}: {re.escape(says)} \(verdict\)$", shown.stdout, re.MULTILINE), shown
    others = {f"ranks/{rank}/threads.tsv" for rank in range(RANKS) if rank != VICTIM}
    assert others <= files.keys() | {name.removeprefix("at-first-exit/") for name in files}
    assert not [name for name, data in files.items() if PLANTED.encode() in data]


def test_root_asks_for_one(tmp_path: Path) -> None:
    """`rankwatch evidence take` takes a bundle of a healthy job, and `list` shows it; an unknown job gets none."""
    machine = Machine(tmp_path)
    folder = tmp_path / "evidence"
    folder.mkdir()
    with machine.job("--ranks", str(RANKS)) as job, watched(machine, job, folder) as agent:
        agent.wait_for_states(alive(RANKS))
        taken = evidence(folder, "take", "--job", machine.job_id)
        assert taken.returncode == 0, taken.stderr
        assert [str(path) for path in bundles(folder)] == [taken.stdout.strip()]
        listed = evidence(folder, "list").stdout
        assert f"job {machine.job_id}" in listed
        assert "it was requested" in listed
        assert evidence(folder, "show", "nothing").returncode == 1


def test_a_full_disk_costs_the_bundle_alone(tmp_path: Path) -> None:
    """On a full disk no partial bundle is left, the failure is counted, and scrapes stay fast."""
    machine = Machine(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)], check=True)
    try:
        with machine.job("--ranks", str(RANKS)) as job, watched(machine, job, disk / "evidence") as agent:
            agent.wait_for_states(alive(RANKS))
            job.kill(job.pid(VICTIM))
            failed = {"part": "bundle"}
            wait_until(
                lambda: agent.value("rankwatch_evidence_failures_total", **failed) == 1, BUNDLE_SECONDS, "the failure"
            )
            assert slowest_scrape(agent, 3.0) < SCRAPE_SECONDS
            assert [path.name for path in (disk / "evidence").iterdir()] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@full
def test_a_hung_file_system_costs_bundles_alone(tmp_path: Path) -> None:
    """If the bundles' file system hangs, scrapes stay fast, deaths are exported, and the agent stops in time."""
    machine = Machine(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hung_directory(disk))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        job = stack.enter_context(machine.job("--ranks", str(RANKS)))
        agent = stack.enter_context(watched(machine, job, disk / "evidence"))
        agent.wait_for_states(alive(RANKS))
        job.kill(job.pid(VICTIM))
        agent.wait_for_states(alive(RANKS) | {str(VICTIM): "dead"}, seconds=BUNDLE_SECONDS)
        assert slowest_scrape(agent, 5.0) < SCRAPE_SECONDS
        assert agent.stop() == 0
