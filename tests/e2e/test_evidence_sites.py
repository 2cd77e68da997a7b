"""Bundles of evidence in which RAS, the GPU, the kernel, records or the job's log name the culprit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from full import full
from jobs import ROOT
from machines import Machine
from nodes import wait_until
from nvml_stub import XID, Node
from ports import free_port
from ras_jobs import RasJob, why_no_ras

BUNDLE_SECONDS = 25.0
LOOK_SECONDS = 30.0
STALLED_SECONDS = 60.0
SILENCE_SECONDS = 5.0
GPU = 6
PLANTED = "hf_plantedplantedplanted"
LOG_LINE = (
    "n1:1:2 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40000> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid fe80::1 remoteGidsfe80::2 "
    "hca mlx5_3\n"
)


class EvidenceSite:
    """An agent that writes bundles into ``folder``; ``job_id``: the job of the test."""

    def __init__(self, directory: Path, job_id: str) -> None:
        self.directory = directory
        self.job_id = job_id
        self.folder = directory / "evidence"

    def agent(self, env: dict[str, str] | None = None, **sections: Any) -> Agent:
        """Return the agent, with further sections."""
        whole = {"evidence": {"path": str(self.folder)}} | sections
        return Agent(self.directory, {"exporters": whole}, job_id=self.job_id, env=env)

    def evidence(self, *arguments: str) -> str:
        """Run `rankwatch evidence`, and return its output."""
        command = [sys.executable, "-m", "agent", "evidence", "--path", str(self.folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout

    def shown_in_time(self) -> str:
        """Wait up to BUNDLE_SECONDS for a bundle, and return the output of `show`."""
        wait_until(lambda: list(self.folder.glob("*.json")), BUNDLE_SECONDS, "a bundle")
        return self.evidence("show", self.job_id)


def suspects(shown: str) -> list[str]:
    """Return the lines below "Suspects"."""
    return re.findall(r"^  (.*)$", shown.partition("Suspects\n")[2].partition("\n\n")[0], re.MULTILINE)


def packed(bundle: Path) -> dict[str, str]:
    """Return the files of a bundle."""
    with tarfile.open(bundle) as archive:
        opened = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read().decode("utf-8", "replace") for name, file in opened.items() if file is not None}


def rank_of(job_id: str, rank: int, command: list[str], **more: Any) -> subprocess.Popen[str]:
    """Start one of two ranks."""
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "SLURM_JOB_ID": job_id}
    return subprocess.Popen(command, env=env, text=True, **more)


@full
@pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")
def test_a_hang_by_ras(tmp_path: Path) -> None:
    """If NVIDIA's RAS reports a stalled job, the bundle names only the rank that the others wait for."""
    with RasJob(tmp_path, 8, free_port()) as job:
        site = EvidenceSite(tmp_path, job.job_id)
        section = {"path": str(site.folder), "silence_seconds": SILENCE_SECONDS}
        with site.agent(ras={"addresses": [f"127.0.0.1:{job.port}"]}, evidence=section) as agent:
            job.launch("world", "AllReduce", 3)
            agent.wait_for("rankwatch_ras_reporter", 1.0, seconds=LOOK_SECONDS, role="reporter")
            job.launch("world", "AllReduce", 1, [rank for rank in range(8) if rank != 5])
            wait_until(
                lambda: agent.samples("rankwatch_communicator_suspect", rank="5"), STALLED_SECONDS, "the suspect"
            )
            shown = site.shown_in_time()
            assert "because RAS reports that it stands still" in shown
            assert suspects(shown) == ["rank 5: has launched less than the others (1234567890abcd) (ras)"]


@full
def test_a_gpu_that_fails(tmp_path: Path) -> None:
    """An Xid of a rank's GPU (stub of NVIDIA's library) gives a bundle with the rank and the check."""
    machine = Machine(tmp_path)
    site = EvidenceSite(tmp_path, machine.job_id)
    (tmp_path / "driver").mkdir()
    gpus = Node(tmp_path / "driver")
    with site.agent({"LD_LIBRARY_PATH": str(gpus.library.parent)}) as agent:
        agent.wait_for("rankwatch_gpu_present", 1.0, gpu="0", seconds=LOOK_SECONDS)
        with machine.job("--ranks", "2") as job:
            gpus.update({f"gpu{GPU + rank}.processes": job.pid(rank) for rank in range(2)})
            agent.wait_for("rankwatch_rank_healthy", 1.0, seconds=LOOK_SECONDS, rank="0")
            gpus.event(GPU, XID, 95)
            shown = site.shown_in_time()
    assert "because hardware has failed under rank 0" in shown
    [suspect] = suspects(shown)
    assert suspect.startswith("rank 0: ")
    assert "gpu_xid" in suspect


def test_what_the_log_says(tmp_path: Path) -> None:
    """The time line has the log's first cause before the death; no file has the secret token that the user printed."""
    machine = Machine(tmp_path)
    site = EvidenceSite(tmp_path, machine.job_id)
    log = tmp_path / "job.out"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("a"))
        command = [sys.executable, str(Path(__file__).with_name("idle_rank.py")), "pt_nccl_watchdg"]
        ranks = [rank_of(machine.job_id, rank, command, stdout=file, stderr=file) for rank in range(2)]
        for rank in ranks:
            stack.callback(rank.wait)
            stack.callback(rank.kill)
        with site.agent(job_log={"lines_in_evidence": True}) as agent:
            agent.wait_for_states({"0": "alive", "1": "alive"})
            file.write(f"logged in with {PLANTED}\n{LOG_LINE}")
            file.flush()
            wait_until(
                lambda: agent.samples("rankwatch_job_log_first_root_timestamp_seconds"), LOOK_SECONDS, "the log's cause"
            )
            ranks[1].send_signal(signal.SIGABRT)
            shown = site.shown_in_time()
    line = shown.partition("Time line")[2]
    assert line.index("first cause in the job's log: ") < line.index("crashed (SIGABRT)")
    assert suspects(shown)[0].startswith("rank 1: crashed (SIGABRT) (verdict)")
    assert "mlx5_3" not in shown
    files = packed(*site.folder.glob("*.tar.gz"))
    [lines] = [text for name, text in files.items() if name.endswith("job_log/lines.txt")]
    assert lines.splitlines()[1:] == ["  logged in with [masked]", f"> {LOG_LINE.rstrip()}"]
    assert [name for name, text in files.items() if PLANTED in text] == []
