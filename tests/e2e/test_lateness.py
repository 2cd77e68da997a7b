"""Who is late in a live job, over a kill of the agent."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from agents import Agent
from inspector_lateness import worked_out
from machines import Machine, alive
from nodes import wait_until

from exporters.inspector.totals.inheritance import BIRTH_SECONDS

LATENESS = "rankwatch_collective_lateness_seconds_total"
LAST = "rankwatch_collective_last_arrivals_total"
MATCHED = "rankwatch_communicator_matched_operations_total"
SAVED = "rankwatch_checkpoint_last_save_timestamp_seconds"
SAVE_SECONDS = 8.0
BUSY = ("--ranks", "8", "--tp", "4", "--records-per-second", "150", "--flush-at-end")


def matched(agent: Agent, job_id: str) -> int:
    """All operations put side by side so far."""
    return int(sum(each.value for each in agent.samples(MATCHED, job_id=job_id)))


def comms_of(agent: Agent, rank: str) -> set[str]:
    """The communicators in which a rank was matched."""
    return {each.labels["comm"] for each in agent.samples(LAST, rank=rank)}


@pytest.mark.timeout(120)
def test_a_straggler_is_named(tmp_path: Path) -> None:
    """Each rank's last arrivals are just those in the files, also over kill -9; only the straggler's are many."""
    machine = Machine(tmp_path)
    with (
        machine.agent(dump_dir=tmp_path / "job" / "inspector") as agent,
        machine.job(*BUSY, "--straggler", "2", "--straggler-delay-us", "3000") as job,
    ):
        agent.wait_for_states(alive(8))
        since = time.time() + SAVE_SECONDS
        wait_until(lambda: (agent.value(SAVED) or 0) > since, 25.0, "a checkpoint")
        least = matched(agent, machine.job_id) + 100
        wait_until(lambda: matched(agent, machine.job_id) > least, BIRTH_SECONDS + 20.0, "matched operations")
        agent.kill9()
        agent.start()
        job.signal_launcher(signal.SIGUSR1)
        assert job.wait() == 0
        truth = worked_out(job.dump_dir)
        expected = sum(own[0] for own in truth.communicators.values())
        wait_until(lambda: matched(agent, machine.job_id) == expected, 15.0, f"{expected} matched operations")
        for name, index, unit in ((LAST, 0, 1.0), (LATENESS, 1, 1e-6)):
            shown: dict[tuple[str, str], float] = {}
            for each in agent.samples(name, job_id=machine.job_id):
                key = (each.labels["comm"], each.labels["collective"])
                shown[key] = shown.get(key, 0.0) + each.value
            wanted: dict[tuple[str, str], float] = {}
            for (comm, collective, _), own in truth.late.items():
                wanted[comm, collective] = wanted.get((comm, collective), 0.0) + own[index] * unit
            assert shown == pytest.approx(wanted)
        [tp] = comms_of(agent, "2") & comms_of(agent, "1") - comms_of(agent, "5")
        last = {rank: sum(each.value for each in agent.samples(LAST, rank=str(rank), comm=tp)) for rank in range(4)}
        whole = sum(each.value for each in agent.samples(MATCHED, comm=tp))
        assert last[2] > 0.95 * whole
        assert max(last[rank] for rank in (0, 1, 3)) < 0.05 * whole
