"""Bundles of evidence by a real agent about real processes: killed, stopped, with a log, on request, on a full disk."""

from __future__ import annotations

import contextlib
import os
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
PLANTED = "hf_plantedplantedplanted"
LOG_LINE = (
    "n1:1:2 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid fe80::1 remoteGidsfe80::2 "
    "hca mlx5_3\n"
)
LOOK_SECONDS = 30.0


def watched(machine: Machine, folder: Path, *jobs: SimulatedJob, **sections: Any) -> Agent:
    """Start an agent that writes its bundles into ``folder``; ``sections``: further settings."""
    own = {"evidence": {"path": str(folder), "minutes_between": 1}}
    return machine.agent(*jobs, exporters=own | sections)


def bundles(folder: Path) -> list[Path]:
    """Return the bundles in a directory."""
    return sorted(folder.glob("*.tar.gz"))


def evidence(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rankwatch evidence`."""
    command = [sys.executable, "-m", "agent", "evidence", "--path", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def packed(bundle: Path) -> dict[str, bytes]:
    """Return the files of a bundle."""
    with tarfile.open(bundle) as archive:
        opened = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in opened.items() if file is not None}


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
    with machine.job("--ranks", str(RANKS), env={"MY_TOKEN": PLANTED}) as job, watched(machine, folder, job) as agent:
        agent.wait_for_states(alive(RANKS))
        began = time.monotonic()
        job.kill(job.pid(VICTIM), number)
        wait_until(lambda: bundles(folder), BUNDLE_SECONDS, "a bundle")
        assert time.monotonic() - began < BUNDLE_SECONDS
        shown = evidence(folder, "show", machine.job_id)
        files = packed(bundles(folder)[0])
        job.kill(job.pid(VICTIM), signal.SIGCONT) if number == signal.SIGSTOP else None
    assert re.search(rf"^Suspects\n  rank {VICTIM}: {re.escape(says)} \(verdict\)$", shown.stdout, re.MULTILINE), shown
    others = {f"ranks/{rank}/threads.tsv" for rank in range(RANKS) if rank != VICTIM}
    assert others <= files.keys() | {name.removeprefix("at-first-exit/") for name in files}
    assert not [name for name, data in files.items() if PLANTED.encode() in data]


def test_what_the_log_says(tmp_path: Path) -> None:
    """The time line has the log's first cause before the death; no file has the secret token that the user printed."""
    machine = Machine(tmp_path)
    folder = tmp_path / "evidence"
    command = [sys.executable, str(Path(__file__).with_name("idle_rank.py")), "pt_nccl_watchdg"]
    env = {**os.environ, "WORLD_SIZE": "2", "SLURM_JOB_ID": machine.job_id}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "job.out").open("a"))
        ranks = [subprocess.Popen(command, env=env | {"RANK": str(n)}, stdout=log, stderr=log) for n in range(2)]
        for rank in ranks:
            stack.callback(rank.wait)
            stack.callback(rank.kill)
        agent = stack.enter_context(watched(machine, folder, job_log={"lines_in_evidence": True}))
        agent.wait_for_states(alive(2))
        log.write(f"logged in with {PLANTED}\n{LOG_LINE}")
        log.flush()
        first = "rankwatch_job_log_first_root_timestamp_seconds"
        wait_until(lambda: agent.samples(first), LOOK_SECONDS, "the log's cause")
        ranks[1].send_signal(signal.SIGABRT)
        wait_until(lambda: bundles(folder), BUNDLE_SECONDS, "a bundle")
        shown = evidence(folder, "show", machine.job_id).stdout
    line = shown.partition("Time line")[2]
    assert line.index("first cause in the job's log: ") < line.index("crashed (SIGABRT)")
    assert "Suspects\n  rank 1: crashed (SIGABRT) (verdict)" in shown
    assert "mlx5_3" not in shown
    files = packed(bundles(folder)[0])
    [lines] = [text.decode() for name, text in files.items() if name.endswith("job_log/lines.txt")]
    assert lines.splitlines()[1:] == ["  logged in with [masked]", f"> {LOG_LINE.rstrip()}"]
    assert [name for name, text in files.items() if PLANTED.encode() in text] == []


def test_root_asks_for_one(tmp_path: Path) -> None:
    """`rankwatch evidence take` takes a bundle of a healthy job, and `list` shows it; an unknown job gets none."""
    machine = Machine(tmp_path)
    folder = tmp_path / "evidence"
    folder.mkdir()
    with machine.job("--ranks", str(RANKS)) as job, watched(machine, folder, job) as agent:
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
        with machine.job("--ranks", str(RANKS)) as job, watched(machine, disk / "evidence", job) as agent:
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
        agent = stack.enter_context(watched(machine, disk / "evidence", job))
        agent.wait_for_states(alive(RANKS))
        job.kill(job.pid(VICTIM))
        agent.wait_for_states(alive(RANKS) | {str(VICTIM): "dead"}, seconds=BUNDLE_SECONDS)
        assert slowest_scrape(agent, 5.0) < SCRAPE_SECONDS
        assert agent.stop() == 0
