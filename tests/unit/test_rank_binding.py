"""The binding of processes to ranks, and its permanence."""

import msgspec
import pytest
from rank_table import KILLED, TENSOR, WORLD, Table, environment, facts, writer_key

from agent.core.identity import Membership, RankLabel
from agent.ranks.naming.binding import BINDING_SECONDS
from agent.ranks.rank.environment import group_job_id, job_hash
from agent.ranks.rank.exit_status import JobEnd
from agent.ranks.rank.process import MAX_RANKS


def test_binding_is_frozen(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """A world communicator that contradicts a published label is logged and changes nothing."""
    key = table.add(1, environment(3))
    table.tick(1.0)
    table.record(1, [Membership(WORLD, 6, 8)], key)
    table.tick(60.0)
    assert table.labels() == {RankLabel("4711", "3"): 1}
    assert [record.msg for record in caplog.records] == ["records name another rank: the process keeps its rank"]


def test_node_rank_in_the_environment(table: Table) -> None:
    """If RANK is 1 in all processes of a node (the node's rank), the world communicator gives their ranks."""
    for pid in (1, 2):
        key = table.add(pid, environment(1))
        table.record(pid, [Membership(WORLD, 7 + pid, 16)], key)
    table.tick(1.0)
    assert table.labels() == {}
    table.tick(BINDING_SECONDS)
    assert table.labels() == {RankLabel("4711", "8"): 1, RankLabel("4711", "9"): 2}


def test_duplicates_are_counted_not_exported(table: Table) -> None:
    """If two live processes of a group have the same rank and no communicator, one is exported, one is counted."""
    first, _ = table.add(1, environment(1)), table.add(2, environment(1))
    table.tick(BINDING_SECONDS)
    assert (list(table.labels().values()), table.ranks.snapshot().duplicates) == ([1], 1)
    table.ranks.observe_exit(first, KILLED)
    table.tick(1.0)
    assert (list(table.labels().values()), table.ranks.snapshot().duplicates) == ([2], 0)


def test_groups_under_one_job_id(table: Table) -> None:
    """If a second group has a rank and the job id of another group, all its ranks get an id with its hash appended."""
    table.add(1, environment(0, port="1000"))
    table.tick(1.0)
    for rank in (0, 1):
        table.add(2 + rank, environment(rank, port="2000"))
    table.tick(1.0)
    assert len(table.labels()) == 1
    table.tick(BINDING_SECONDS)
    second = group_job_id("4711", "node-a:2000")
    assert table.labels() == {RankLabel("4711", "0"): 1, RankLabel(second, "0"): 2, RankLabel(second, "1"): 3}
    table.add(4, environment(5, port="2000"))
    table.tick(BINDING_SECONDS)
    assert table.labels()[RankLabel(second, "5")] == 4


def test_job_steps_without_a_rendezvous_are_groups(table: Table) -> None:
    """If two steps of a job each have a rank 0, all ranks of the later step have an id with the step's hash appended.

    The scheduler's end of the job is the end of both steps."""
    step = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2"}
    for pid, (number, rank) in enumerate((("0", "0"), ("1", "0"), ("1", "1"))):
        table.add(pid, step | {"SLURM_STEP_ID": number, "SLURM_PROCID": rank})
        table.tick(2.0)
    later = group_job_id("4711", "step/1")
    table.tick(10.0)
    assert table.labels() == {RankLabel("4711", "0"): 0, RankLabel(later, "0"): 1, RankLabel(later, "1"): 2}
    table.ranks.observe_job_ends([JobEnd("4711", 0.0, table.clock.time(), "CANCELLED")])
    snapshot = table.ranks.snapshot()
    assert (snapshot.duplicates, [job.end_state for job in snapshot.jobs.values()]) == (0, ["CANCELLED"] * 2)


def test_loopback_rendezvous_of_two_pods(table: Table) -> None:
    """Two jobs with the rendezvous 127.0.0.1:29500 in different network namespaces are two jobs, and both are shown."""
    env = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for pid, namespace in ((1, 4026532001), (2, 4026532002), (3, 4026532002)):
        process = msgspec.structs.replace(facts(pid, env | {"RANK": str(pid)}), network_namespace=namespace)
        table.ranks.observe_process(process)
    table.tick(1.0)
    job_of = {label.rank: label.job_id for label in table.labels()}
    assert job_of["1"] != job_of["2"] == job_of["3"]


def test_several_ranks_in_one_process(table: Table) -> None:
    """A process of four ranks gets four labels, and smaller communicators are matched by order."""
    key = table.add(1, environment(1))
    places = [Membership(WORLD, n, 8) for n in (4, 5, 6, 7)] + [Membership(TENSOR, n, 4) for n in range(4)]
    table.record(1, places, key)
    table.tick(BINDING_SECONDS)
    assert sorted(label.rank for label in table.labels()) == ["4", "5", "6", "7"]
    assert table.ranks.label(writer_key(1), TENSOR, 2) == RankLabel("4711", "6")


def test_a_process_of_several_ranks_gets_its_missing_label(table: Table) -> None:
    """A process of several ranks gets the label that another process held, once that process has ended."""
    first, second = table.add(1, environment(5)), table.add(2, environment(1))
    table.record(2, [Membership(WORLD, 4, 8), Membership(WORLD, 5, 8)], second)
    table.tick(BINDING_SECONDS)
    assert table.labels() == {RankLabel("4711", "4"): 2, RankLabel("4711", "5"): 1}
    table.ranks.observe_exit(first, KILLED)
    table.tick(1.0)
    assert table.labels() == {RankLabel("4711", "4"): 2, RankLabel("4711", "5"): 2}
    assert table.ranks.snapshot().duplicates == 0


def test_ranks_of_a_process_are_bounded(table: Table) -> None:
    """If a process's records name more ranks than any node has GPUs, it has MAX_RANKS ranks."""
    key = table.add(1, environment(1, world=256))
    table.record(1, [Membership(WORLD, n, 256) for n in range(256)], key)
    table.tick(BINDING_SECONDS)
    assert sorted(int(label.rank) for label in table.labels()) == list(range(MAX_RANKS))


def test_a_rank_that_cannot_be_identified(table: Table) -> None:
    """In a process of several ranks, a communicator of some of them has the rank `unknown` after ten seconds."""
    key = table.add(1, environment(1))
    table.record(1, [Membership(WORLD, n, 8) for n in (4, 5, 6, 7)], key)
    table.tick(BINDING_SECONDS)
    table.ranks.observe_records(writer_key(1), [Membership(TENSOR, 0, 2)], None)
    assert table.ranks.label(writer_key(1), TENSOR, 0) is None
    table.tick(BINDING_SECONDS)
    assert table.ranks.label(writer_key(1), TENSOR, 0) == RankLabel("4711", "unknown")


def test_an_unseen_writer_gets_no_label_back(table: Table) -> None:
    """After a restart of the agent a rank keeps the label that it took from a writer that was never seen."""
    table.ranks.observe_records(writer_key(1), [Membership(WORLD, 5, 8)], None)
    table.tick(BINDING_SECONDS)
    key = table.add(1, None)
    table.ranks.observe_memberships(key, [Membership(WORLD, 5, 8)])
    table.tick(BINDING_SECONDS)
    again = table.restarted()
    again.ranks.observe_state(key)
    assert again.labels() == table.labels() == {RankLabel(job_hash(WORLD), "5"): 1}


def test_an_unseen_writer_is_evicted(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Records keep their label if their process appears late with the same label."""
    table.ranks.observe_records(writer_key(1), [Membership(WORLD, 5, 8)], None)
    table.tick(BINDING_SECONDS)
    label = table.ranks.label(writer_key(1), WORLD, 5)
    assert label == RankLabel(job_hash(WORLD), "5")
    assert table.labels() == {}  # no process was seen, so no state is shown
    key = table.add(1, None)
    table.ranks.link(writer_key(1), key)
    table.tick(BINDING_SECONDS)
    assert (table.ranks.label(writer_key(1), WORLD, 5), caplog.records) == (label, [])


def test_without_environment_the_largest_communicator_names_the_rank(table: Table) -> None:
    """Without an environment the binding waits ten seconds and takes the rank in the largest communicator."""
    key = table.add(1, None)
    table.record(1, [Membership(TENSOR, 1, 4), Membership(WORLD, 5, 8)], key)
    table.tick(BINDING_SECONDS - 0.1)
    assert table.labels() == {}
    table.tick(0.1)
    assert table.labels() == {RankLabel(job_hash(WORLD), "5"): 1}
