"""Ranks under a real Slurm, end to end: owners, exits, logs, and processes that falsely claim a job."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from agents import Agent
from full import full
from machines import alive
from nodes import wait_until
from slurm import CLUSTER, END_SECONDS, IDLE_RANK, LOW, START_SECONDS, THREAD, Slurm, idle_rank, why_no_slurm
from users import NOBODY, as_user

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or ""),
    pytest.mark.timeout(120),
]

RANK = shlex.join(idle_rank())
CRASHED = ("signaled", "SIGSEGV", "")
TERMINATED = ("signaled", "SIGTERM", "")
BINDING_SECONDS = 20.0
"""The ten seconds in which better sources can name a rank, and the delays of a busy machine."""
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Provide a running Slurm."""
    with Slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """Provide a running Slurm without jobs."""
    yield cluster
    cluster.cancel_all()


@pytest.fixture
def agent(slurm: Slurm, tmp_path: Path) -> Iterator[Agent]:
    """Provide an agent on Slurm's node that knows no job yet."""
    sections = {"inspector": {"paths": [str(tmp_path / "nothing")]}}
    with Agent(tmp_path, {"exporters": sections}, node=slurm.node) as agent:
        yield agent


def test_tasks_are_proven_ranks_and_the_first_to_crash_is_dead(slurm: Slurm, agent: Agent) -> None:
    """Two Slurm tasks are ranks with the job's facts; after a crash the crashed rank is dead, the other is not."""
    agent.job_id = slurm.submit(f"srun --kill-on-bad-exit {RANK}", "--ntasks=2", "--job-name=train")
    agent.wait_for_states(alive(2), START_SECONDS)
    wait_for_identities(agent, agent.job_id, {"0": ("environment", "parent"), "1": ("environment", "parent")})
    agent.wait_for("rankwatch_job_info", 1, user="root")
    [info] = agent.samples("rankwatch_job_info")
    assert info.labels == {
        "job_id": agent.job_id,
        "user": "root",
        "name": "train",
        "world_size": "2",
        "partition": LOW,
        "scheduler_cluster": CLUSTER,
        "nodes": "1",
        "restarts": "",
    }
    assert agent.value("rankwatch_job_expected_ranks", source="environment") == 2
    assert agent.value("rankwatch_job_expected_ranks", source="tasks") == 2
    slurm.node.kill(pids(agent)["1"], signal.SIGSEGV)
    agent.wait_for_states({"0": "exited", "1": "dead"}, END_SECONDS)
    assert agent.ending("1") == CRASHED
    wait_until(lambda: agent.ending("0") in (TERMINATED, ("signaled", "SIGKILL", "")), what="the status of rank 0")
    assert agent.states() == {"0": "exited", "1": "dead"}
    assert "of another owner" not in agent.log()


@pytest.mark.parametrize("step_output", [False, True], ids=["sbatch", "srun"])
def test_a_jobs_log_needs_no_pattern(slurm: Slurm, agent: Agent, tmp_path: Path, step_output: bool) -> None:
    """The agent finds the first cause in the log of srun or sbatch without a configured pattern."""
    say = f"{RANK} & echo {shlex.quote(MISMATCH)}; wait"
    own = f"--output={tmp_path}/step.log " if step_output else ""
    agent.job_id = slurm.submit(f"srun {own}bash -c {shlex.quote(say)}", "--ntasks=2")
    agent.wait_for_states(alive(2), START_SECONDS)
    first = "rankwatch_job_log_first_root_timestamp_seconds"
    wait_until(lambda: agent.samples(first, job_id=agent.job_id or ""), LOOK_SECONDS, "the first root")
    [root] = agent.samples(first, job_id=agent.job_id)
    assert root.labels["category"] == "collective_mismatch"


@full
@pytest.mark.parametrize(
    ("title", "source"),
    [("VLLM::Worker_TP$each", "title"), (sys.executable, "local_index")],
    ids=["titles", "no-titles"],
)
def test_children_of_one_task_are_ranks_of_their_own(slurm: Slurm, agent: Agent, title: str, source: str) -> None:
    """Four children of one task are four ranks, by title or start order; a crash of a child ends only its rank."""
    order, pause = ("3 2 1 0", 1.5) if source == "title" else ("0 1 2 3", 0)
    children = f'for each in {order}; do (exec -a "{title}" {RANK}) & sleep {pause}; done; wait'
    agent.job_id = slurm.submit(f"srun bash -c {shlex.quote(children)}", "--ntasks=1")
    agent.wait_for_states(alive(4), START_SECONDS + BINDING_SECONDS)
    wait_for_identities(agent, agent.job_id, dict.fromkeys("0123", (source, "parent")))
    shown = pids(agent)
    if source == "title":
        assert [words_of(slurm, shown[rank])[0] for rank in "0123"] == [f"VLLM::Worker_TP{rank}" for rank in "0123"]
    else:
        assert [shown[rank] for rank in "0123"] == sorted(shown.values())
    assert agent.samples("rankwatch_job_expected_ranks") == []
    assert agent.value("rankwatch_rank_identity_problems", problem="duplicate") == 0
    slurm.node.kill(shown["2"], signal.SIGSEGV)
    agent.wait_for_ending("2", CRASHED)
    agent.wait_for_states(alive(4) | {"2": "dead"})


@full
def test_who_guesses_a_job_id_loses_it_to_the_job(slurm: Slurm, agent: Agent) -> None:
    """A user's process with a forged job id gets a suffix to this id when the real job starts."""
    next_id = int(slurm.submit("true", "--ntasks=1")) + 1
    job, taken, taken_next = str(next_id), f"{next_id}-u{NOBODY}", f"{next_id + 1}-u{NOBODY}"
    program = IDLE_RANK.read_text()  # the user cannot read root's files
    guess = [*as_user(NOBODY, "--no-new-privs"), sys.executable, "-S", "-c", program, THREAD]
    with stranger(slurm, guess, {"SLURM_JOB_ID": job, "RANK": "0"}):
        agent.wait_for_states(alive(1), job_id=job)
        wait_for_identities(agent, job, {"0": ("environment", "none")})
        [squatter], [start] = pids(agent, job_id=job).values(), starts(agent, job_id=job).values()
        assert slurm.submit(f"srun {RANK}", "--ntasks=2") == job
        agent.wait_for_states(alive(2), START_SECONDS, job_id=job)
        wait_for_identities(agent, job, {"0": ("environment", "parent"), "1": ("environment", "parent")})
        assert squatter not in pids(agent, job_id=job).values()
        assert agent.states(job_id=taken) == alive(1)
        assert pids(agent, job_id=taken) == {"0": squatter}
        assert starts(agent, job_id=taken) == {"0": start}
        wait_until(lambda: agent.log().count("of another owner") == 1)
        with stranger(slurm, guess, {"SLURM_JOB_ID": str(next_id + 1), "RANK": "0"}):
            agent.wait_for_states(alive(1), job_id=taken_next)
            assert agent.states(job_id=str(next_id + 1)) == {}
            wait_until(lambda: agent.log().count("of another owner") == 2)


@contextlib.contextmanager
def stranger(slurm: Slurm, argv: Sequence[str], env: Mapping[str, str]) -> Iterator[None]:
    """Run a program on the node, outside of any job."""
    before = running(slurm, argv[-1])
    process = slurm.popen(argv, env)
    [pid] = wait_until(lambda: set(running(slurm, argv[-1])) - set(before), what="the process")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            slurm.node.kill(pid)
        process.wait()


def running(slurm: Slurm, thread: str) -> list[int]:
    """Return the pids of the node's processes that have a thread of this name."""
    return sorted(int(path.parts[-4]) for path in slurm.node.proc.glob("[0-9]*/task/*/comm") if name_of(path) == thread)


def name_of(path: Path) -> str:
    """Return the name of a thread; empty if it has ended."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def words_of(slurm: Slurm, pid: int) -> list[str]:
    """Return the command line of one of the node's processes."""
    return (slurm.node.proc / str(pid) / "cmdline").read_text().split("\0")


def wait_for_identities(agent: Agent, job_id: str, wanted: Mapping[str, tuple[str, str]]) -> None:
    """Wait until the agent has logged these ranks of a job, with the source of the label and the proof of the owner."""
    wait_until(
        lambda: {line["rank"]: (line["named_by"], line["proof"]) for line in agent.named(job_id)} == wanted,
        what=f"the ranks {wanted} in the log",
    )


def pids(agent: Agent, **labels: str) -> dict[str, int]:
    """Return the pid of each live rank."""
    return {s.labels["rank"]: int(s.labels["pid"]) for s in agent.samples("rankwatch_rank_info", **labels)}


def starts(agent: Agent, **labels: str) -> dict[str, float]:
    """Return the start time of each rank."""
    return {s.labels["rank"]: s.value for s in agent.samples("rankwatch_rank_start_timestamp_seconds", **labels)}
