"""Python stacks of real processes by the real py-spy: the stacks show which rank is at another place in the program
than all others, and reading a stack does not disturb the rank."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from full import full
from hanging_job import HangingJob
from jobs import ROOT
from machines import Machine, alive
from nodes import wait_until

RANKS = 8
VICTIM = 5
SILENCE_SECONDS = 5.0
NAMED_SECONDS = 40.0
PROGRESS = "rankwatch_rank_last_progress_timestamp_seconds"
PY_SPY = Path(sys.executable).with_name("py-spy")


def sections(dump_dir: Path, evidence: Path) -> dict[str, Any]:
    """Return an agent's configuration."""
    return {
        "inspector": {"paths": [str(dump_dir)]},
        "stacks": {"enabled": True, "py_spy": str(PY_SPY), "silence_seconds": SILENCE_SECONDS},
        "evidence": {"path": str(evidence), "silence_seconds": SILENCE_SECONDS},
    }


class StackSite:
    """A job, and an agent that reads stacks and collects evidence."""

    def __init__(self, directory: Path) -> None:
        self.machine = Machine(directory)
        self.evidence = directory / "evidence"
        self.job = HangingJob(directory / "job", self.machine.job_id, RANKS)
        config = {"exporters": sections(self.job.dump_dir, self.evidence)}
        self.agent = Agent(directory, config, job_id=self.machine.job_id)
        self.agent.wait_for_states(alive(RANKS))

    def stacks(self) -> dict[str, str]:
        """Return the shown stacks of the ranks."""
        return {
            sample.labels["rank"]: sample.labels["stack"] for sample in self.agent.samples("rankwatch_rank_stack_info")
        }

    def wait_for_stacks(self) -> dict[str, str]:
        """Wait for the stacks of all ranks, and return them."""
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
    """If seven ranks wait in all_reduce for a rank in its data loader, series and bundle name this rank."""
    wait_until(lambda: site.agent.samples(PROGRESS), NAMED_SECONDS, "progress")
    assert site.stacks() == {}
    site.job.tell(VICTIM, signal.SIGUSR1)
    stacks = site.wait_for_stacks()
    assert Counter(stacks.values()).most_common(1)[0][1] == RANKS - 1
    assert re.fullmatch(r"all_reduce \(hanging_rank\.py\) from train from \(module\) #[0-9a-f]{8}", stacks["0"]), stacks
    assert re.fullmatch(
        r"Data\.next_batch \(hanging_rank\.py\) from train from \(module\) #[0-9a-f]{8}", stacks[str(VICTIM)]
    ), stacks
    wait_until(lambda: list(site.evidence.glob("*.tar.gz")), NAMED_SECONDS, "a bundle")
    command = [sys.executable, "-m", "agent", "evidence", "--path", str(site.evidence), "show", site.machine.job_id]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout
    assert re.search(rf"^Suspects\n  rank {VICTIM}: its Python code is in Data\.next_batch ", shown, re.MULTILINE), (
        shown
    )
    site.job.tell(VICTIM, signal.SIGUSR2)
    wait_until(lambda: site.stacks() == {}, NAMED_SECONDS, "no stacks")
    assert [rank.poll() for rank in site.job.ranks] == [None] * RANKS


@full
def test_a_stopped_rank_is_looked_at(site: StackSite) -> None:
    """The agent reads the stack of a stopped rank; the rank stays stopped, and continues after SIGCONT."""
    wait_until(lambda: site.agent.samples(PROGRESS), NAMED_SECONDS, "progress")
    site.job.tell(VICTIM, signal.SIGSTOP)
    site.wait_for_stacks()
    stat = Path(f"/proc/{site.job.ranks[VICTIM].pid}/stat").read_text()
    assert stat.rpartition(")")[2].split()[0] == "T"
    site.job.tell(VICTIM, signal.SIGCONT)
    wait_until(lambda: site.stacks() == {}, NAMED_SECONDS, "no stacks")
