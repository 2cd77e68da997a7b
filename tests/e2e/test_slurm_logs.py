"""The log of a job under a real Slurm is found without a pattern."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent
from machines import alive
from nodes import wait_until
from slurm import START_SECONDS, Slurm, idle_rank, why_no_slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or ""),
    pytest.mark.timeout(120),
]

MISMATCH = (
    "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[20], TensorDtypes=Float, "
    "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), "
    "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))), but Rank 0 is running "
    "collective: CollectiveFingerPrint(SequenceNumber=7, OpType=BROADCAST, TensorShape=[20], TensorDtypes=Float)."
)
LOOK_SECONDS = 30.0
"""Logs of new ranks are searched within 10 s."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Provide a running Slurm."""
    with Slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.mark.parametrize("step_output", [False, True], ids=["sbatch", "srun"])
def test_a_jobs_log_needs_no_pattern(slurm: Slurm, tmp_path: Path, step_output: bool) -> None:
    """The agent finds the first cause in the log of srun or sbatch without a configured pattern."""
    say = f"{shlex.join(idle_rank())} & echo {shlex.quote(MISMATCH)}; wait"
    own = f"--output={tmp_path}/step.log " if step_output else ""
    exporters = {"inspector": {"paths": [str(tmp_path / "nothing")]}}
    with Agent(tmp_path, {"exporters": exporters}, node=slurm.node) as agent:
        agent.job_id = slurm.submit(f"srun {own}bash -c {shlex.quote(say)}", "--ntasks=2")
        try:
            agent.wait_for_states(alive(2), START_SECONDS)
            [root] = wait_until(
                lambda: agent.samples("rankwatch_job_log_first_root_timestamp_seconds", job_id=agent.job_id),
                LOOK_SECONDS,
                "the first root",
            )
        finally:
            slurm.cancel(agent.job_id)
    assert root.labels["category"] == "collective_mismatch"
