"""Python stacks of real processes by the real py-spy: who is elsewhere is named, and goes on undisturbed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from jobs import ROOT
from machines import Machine, alive
from nodes import wait_until

RANKS = 8
VICTIM = 5
SILENCE_SECONDS = 5.0
NAMED_SECONDS = 40.0
PY_SPY = Path(sys.executable).with_name("py-spy")


class HangingJob:
    """Ranks that meet in every step, and a rank among them that can be made to wait for its data."""

    def __init__(self, directory: Path, job_id: str) -> None:
        self.dump_dir = directory / "inspector"
        self.dump_dir.mkdir(parents=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "meeting"))
        self._listener.listen(RANKS)
        self.ranks = []
        for rank in range(RANKS):
            variables = {"SLURM_JOB_ID": job_id, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
            own = (self.dump_dir, rank, RANKS, directory / "meeting")
            argv = [sys.executable, str(Path(__file__).with_name("hanging_rank.py")), *map(str, own)]
            self.ranks.append(subprocess.Popen(argv, env={**os.environ, **variables}, stderr=subprocess.DEVNULL))
        self._meeting = threading.Thread(target=self._meet, daemon=True)
        self._meeting.start()

    def tell(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank."""
        self.ranks[rank].send_signal(number)

    def close(self) -> None:
        """End the ranks."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self._meeting.join()
        self._listener.close()

    def _meet(self) -> None:
        """Let all ranks go on when the last has come, for ever."""
        came = [self._listener.accept()[0] for _ in range(RANKS)]
        with contextlib.ExitStack() as stack:
            for each in came:
                stack.enter_context(each)
            with contextlib.suppress(OSError):
                while all(each.recv(1) for each in came):
                    for each in came:
                        each.sendall(b"!")


class StackSite:
    """A job, and an agent that looks at stacks and takes evidence."""

    def __init__(self, place: Path) -> None:
        self.machine = Machine(place)
        self.evidence = place / "evidence"
        self.job = HangingJob(place / "job", self.machine.job_id)
        sections: dict[str, Any] = {
            "inspector": {"paths": [str(self.job.dump_dir)]},
            "stacks": {"enabled": True, "py_spy": str(PY_SPY), "silence_seconds": SILENCE_SECONDS},
            "evidence": {"path": str(self.evidence), "silence_seconds": SILENCE_SECONDS},
        }
        self.agent = Agent(place, {"exporters": sections}, job_id=self.machine.job_id)
        self.agent.wait_for_states(alive(RANKS))

    def stacks(self) -> dict[str, str]:
        """The ranks' stacks that are shown."""
        return {each.labels["rank"]: each.labels["stack"] for each in self.agent.samples("rankwatch_rank_stack_info")}

    def wait_for_stacks(self) -> dict[str, str]:
        """Wait for those of all ranks."""
        wait_until(lambda: len(self.stacks()) == RANKS, NAMED_SECONDS, "the stacks of all ranks")
        return self.stacks()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StackSite]:
    """Provide a site."""
    made = StackSite(tmp_path)
    try:
        with made.agent:
            yield made
    finally:
        made.job.close()


def test_who_is_elsewhere_is_named(site: StackSite) -> None:
    """Seven ranks wait in all_reduce for one in its data loader: series and bundle say so, until they go on."""
    wait_until(lambda: site.agent.samples("rankwatch_rank_last_progress_timestamp_seconds"), NAMED_SECONDS, "progress")
    assert site.stacks() == {}
    site.job.tell(VICTIM, signal.SIGUSR1)
    found = site.wait_for_stacks()
    assert Counter(found.values()).most_common(1)[0][1] == RANKS - 1
    assert re.fullmatch(r"all_reduce \(hanging_rank\.py\) < train < <module> #[0-9a-f]{8}", found["0"]), found
    assert re.fullmatch(r"Data\.next_batch \(hanging_rank\.py\) < train < <module> #[0-9a-f]{8}", found[str(VICTIM)]), (
        found
    )
    wait_until(lambda: list(site.evidence.glob("*.tar.gz")), NAMED_SECONDS, "a bundle")
    command = [sys.executable, "-m", "agent", "evidence", "--path", str(site.evidence), "show", site.machine.job_id]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout
    assert re.search(rf"^Suspects\n  rank {VICTIM}: its Python code is in Data\.next_batch ", shown, re.MULTILINE), (
        shown
    )
    site.job.tell(VICTIM, signal.SIGUSR2)
    wait_until(lambda: site.stacks() == {}, NAMED_SECONDS, "no stacks")
    assert [rank.poll() for rank in site.job.ranks] == [None] * RANKS


def test_a_stopped_rank_is_looked_at(site: StackSite) -> None:
    """A rank that SIGSTOP holds is looked at like the others, stays stopped, and goes on when it may."""
    wait_until(lambda: site.agent.samples("rankwatch_rank_last_progress_timestamp_seconds"), NAMED_SECONDS, "progress")
    site.job.tell(VICTIM, signal.SIGSTOP)
    site.wait_for_stacks()
    stat = Path(f"/proc/{site.job.ranks[VICTIM].pid}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    site.job.tell(VICTIM, signal.SIGCONT)
    wait_until(lambda: site.stacks() == {}, NAMED_SECONDS, "no stacks")
