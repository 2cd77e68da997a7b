"""The effect of the scheduler's record of a job's end on the exits of its ranks."""

import pytest
from rank_table import ABORTED, CRASHED, FAILED, KILLED, OOM, TERMINATED, UNKNOWN, WELL, Table, environment, owned

from agent.ranks.rank.exit_status import ENDED_BY_SCHEDULER, ExitStatus, JobEnd
from agent.ranks.rank.facts import Owner
from agent.ranks.rank.verdict_thresholds import DEFAULTS

ENDED = 1.7e9
USER = Owner("user", "1000")


@pytest.mark.parametrize("state", sorted(ENDED_BY_SCHEDULER))
@pytest.mark.parametrize(("status", "explained"), [
    (TERMINATED, True), (KILLED, True), (WELL, True), (FAILED, True), (UNKNOWN, True), (None, True), (CRASHED, False),
    (ABORTED, False), (OOM, False),
])  # fmt: skip
def test_a_job_that_was_sent_away(state: str, status: ExitStatus | None, explained: bool) -> None:
    """A cancel, a preemption or the time limit explains every exit except crashes and OOM kills."""
    assert JobEnd("4", 0.0, ENDED, state).explains(ENDED - 1, status) is explained


@pytest.mark.parametrize("state", ["COMPLETED", "REQUEUED"])
@pytest.mark.parametrize(("status", "explained"), [
    (TERMINATED, True), (WELL, True), (UNKNOWN, True), (None, True), (KILLED, False), (FAILED, False), (CRASHED, False),
])  # fmt: skip
def test_a_job_that_ended_in_order(state: str, status: ExitStatus | None, explained: bool) -> None:
    """A normal end or a requeue explains no SIGKILL, no crash and no nonzero exit status."""
    assert JobEnd("4", 0.0, ENDED, state).explains(ENDED - 1, status) is explained


@pytest.mark.parametrize(("late", "explained"), [
    (-DEFAULTS.end_seconds, True), (-DEFAULTS.end_seconds - 1, False), (DEFAULTS.after_end_seconds, True),
    (DEFAULTS.after_end_seconds + 1, False),
])  # fmt: skip
def test_only_exits_near_the_end(late: float, explained: bool) -> None:
    """The scheduler's end of a job explains only exits up to end_seconds before and after_end_seconds after it."""
    assert JobEnd("4", 0.0, ENDED, "CANCELLED").explains(ENDED + late, KILLED) is explained


def killed_rank(table: Table, job: str = "4711", owner: Owner | None = None) -> None:
    """Kill rank 0 of a job of two by SIGKILL, long before its peer exits."""
    key, _ = (table.add_facts(owned(10 + rank, environment(rank, 2, job), owner or USER)) for rank in (0, 1))
    table.tick()
    table.tick(1.0)
    table.ranks.observe_exit(key, KILLED)
    table.tick(20.0)


def cancelled(table: Table, job: str = "4711") -> list[JobEnd]:
    """Return a record that the job was cancelled just now."""
    return [JobEnd(job, 0.0, table.clock.time(), "CANCELLED")]


def test_a_dead_rank_is_finished_once_the_scheduler_has_spoken() -> None:
    """A late record of the scheduler makes a dead rank `finished`; it stays `finished` after a restart of the agent."""
    table = Table(once=True)
    killed_rank(table)
    assert table.states()["0"] == "dead"
    table.ranks.observe_job_ends(cancelled(table))
    assert table.states() == {"0": "finished", "1": "alive"}
    restored = Table(once=True)
    restored.clock.now = table.clock.now
    restored.ranks.load(table.ranks.dump())
    restored.tick()
    assert restored.states()["0"] == "finished"


def test_a_proven_job_counts_not_the_one_that_is_claimed() -> None:
    """A rank that claims a cancelled job's id but is proven to be of another job is judged by the proven job."""
    table = Table(once=True)
    killed_rank(table, owner=Owner("job", "slurm/5", scheduler="slurm", job_id="5", proof="cgroup"))
    table.ranks.observe_job_ends(cancelled(table))
    assert table.states()["0"] == "dead"
    table.ranks.observe_job_ends(cancelled(table, "5"))
    assert table.states()["0"] == "finished"


def test_ids_of_no_scheduler_have_no_word() -> None:
    """The scheduler's record does not apply to a launcher's run id that equals the job's number."""
    table = Table(once=True)
    env = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "4711"}
    key = table.add(10, env)
    table.add(11, env | {"RANK": "1"})
    table.tick()
    table.tick(1.0)
    table.ranks.observe_exit(key, KILLED)
    table.tick(20.0)
    table.ranks.observe_job_ends(cancelled(table))
    assert table.states()["0"] == "dead"
