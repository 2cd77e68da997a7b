"""Real torchrun (PyTorch 2.13, gloo): its ranks' exits, the agent's report of each, and no alert for clean ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from agents import Agent, select
from nodes import wait_until
from torch_jobs import WITHOUT_NCCL, TorchJob, ends, needs_torch

pytestmark = needs_torch
STARTED_SECONDS = 300.0
ENDED_SECONDS = 60.0


class Ends(NamedTuple):
    """The end of rank 1, the page's words, and class and cause of the exit (empty: no cause).

    ``launcher``: the signal that the launcher gets instead of the rank."""

    how: str
    words: str
    state: str
    kind: str
    cause: str = ""
    launcher: signal.Signals | None = None


ENDS = (
    Ends("end", "exited with status 0", "finished", "ok"),
    Ends("key", "exited with status 1, raised KeyError", "dead", "fail", "program_error"),
    Ends("oom", "exited with status 1, raised torch.OutOfMemoryError", "dead", "fail", "cuda_oom"),
    Ends("own", "exited with status 1, raised exception", "dead", "fail", "program_error"),
    Ends("early", "exited with status 0", "exited", "left"),
    Ends("SIGKILL", "killed (SIGKILL)", "dead", "torn"),
    Ends("SIGABRT", "crashed (SIGABRT)", "dead", "fail"),
    Ends("SIGSEGV", "crashed (SIGSEGV)", "dead", "crash"),
    Ends("interrupted", "killed (SIGINT)", "exited", "left", launcher=signal.SIGINT),
    Ends("terminated", "killed (SIGTERM)", "exited", "left", launcher=signal.SIGTERM),
)
RESTARTED = "again"
"""The job in which torchrun has two restarts left: rank 1 ends by KeyError, and waits in its second run."""
STOPPED = "SIGSTOP"
HOWS = (*(end.how for end in ENDS), STOPPED, RESTARTED)
ALIVE_AGAIN_SECONDS = 30.0
"""Less than the rules' 60 s wait for a restart."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Provide an agent for ranks without NCCL, and one job per way to end; all ranks run before rank 1 ends."""
    directory = tmp_path_factory.mktemp("torchrun")
    with Agent(directory, {"exporters": WITHOUT_NCCL}) as agent, contextlib.ExitStack() as stack:
        jobs = {}
        for how in HOWS:
            restarts = f"--max-restarts={2 if how == RESTARTED else 0}"
            jobs[how] = stack.enter_context(TorchJob(directory, job_of(how), 2, restarts, reduces=False))
        wait_until(lambda: agent.value("rankwatch_processes_without_nccl") == 0.0 and up(agent), STARTED_SECONDS)
        launchers = {end.how: end.launcher for end in ENDS}
        for how, job in jobs.items():
            if (number := launchers.get(how)) is not None:
                job.launchers[0].send_signal(number)
            elif how == "end":
                assert job.end() == [0]
            else:
                job.order(1, how)
        yield agent


def job_of(how: str) -> str:
    """Return the job's id."""
    return f"torchrun-{how.lower()}"


def up(agent: Agent) -> bool:
    """Return whether all ranks run."""
    samples = agent.samples("rankwatch_rank_up")
    running = {(sample.labels["job_id"], sample.labels["rank"]) for sample in samples if sample.value}
    return {(job_of(how), rank) for how in HOWS for rank in "01"} <= running


def exits(agent: Agent, how: str) -> dict[str, tuple[str, str, bool]]:
    """Return class, cause and retraction of each exit that the agent exports of a job, by rank."""
    return {
        series.labels["rank"]: (series.labels["class"], series.labels["cause"], series.value < 0)
        for series in select(agent.page(), "rankwatch_exit_age_seconds", job_id=job_of(how))
    }


def test_a_restarted_rank_is_alive_in_time(agent: Agent) -> None:
    """In less time than the rules wait for a restart, both ranks run again after torchrun's restart, and no exit
    counts.

    An exit that waits for its cause is never exported if its rank runs again within these seconds."""
    restarts_left = "rankwatch_job_restarts_left"
    wait_until(lambda: agent.value(restarts_left, job_id=job_of(RESTARTED)) == 1, ALIVE_AGAIN_SECONDS, "the restart")
    agent.wait_for("rankwatch_job_ranks_live", 2, job_id=job_of(RESTARTED))
    wait_until(lambda: exits(agent, RESTARTED).get("1", ("fail", "", True))[::2] == ("fail", True))


def test_a_stopped_rank_is_unresponsive(agent: Agent) -> None:
    """A rank that SIGSTOP stops has not exited: its state is unresponsive, and no exit is exported."""
    wait_until(lambda: agent.states(job_id=job_of(STOPPED)) == {"0": "alive", "1": "unresponsive"}, ENDED_SECONDS)
    assert exits(agent, STOPPED) == {}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.how)
def test_an_end(agent: Agent, end: Ends) -> None:
    """The page has words for the end of rank 1, its exit has class and cause, and no output has the user's words."""
    job_id = job_of(end.how)
    wait_until(lambda: ends(agent, job_id).get("1") == (end.words, end.state), ENDED_SECONDS, f"{end}")
    is_either = end.launcher is not None or end.kind == "ok"  # either rank can end first
    wait_until(lambda: "1" in exits(agent, end.how) or (is_either and exits(agent, end.how)), ENDED_SECONDS, "an exit")
    first = exits(agent, end.how)
    assert (end.kind, end.cause, False) in (set(first.values()) if is_either else {first["1"]})
    assert "secret" not in agent.page()
    assert "TheUsersOwnWord" not in agent.page()
