"""Ranks of processes that share one environment, and ranks without a known number."""

import pytest
from client_metrics import samples
from rank_table import KILLED, WORLD, Table, environment, owned

from agent.core.identity import Membership, RankLabel
from agent.ranks import families as rank_families, liveness_families
from agent.ranks.naming.binding import BINDING_SECONDS, MAX_SIBLINGS
from agent.ranks.naming.shared_environment import coordinates_of, number_of
from agent.ranks.rank.environment import group_job_id
from agent.ranks.rank.facts import Owner
from exporters.ras.query.jobs import size_of

ALICE = Owner("user", "1000")
VLLM = "VLLM::Worker_TP{}"


def ranks(table: Table) -> dict[str, int]:
    """Return the pid of each rank of job 4711."""
    return {label.rank: pid for label, pid in table.labels().items() if label.job_id == "4711"}


def sources(table: Table) -> set[str]:
    """Return the sources of the ranks' labels."""
    return {view.process.source for view in table.ranks.snapshot().ranks}


def task(number: int, world: int = 1) -> dict[str, str]:
    """Return the environment of a Slurm task, which its children inherit."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": str(number),
        "SLURM_NTASKS": str(world),
        "SLURM_TASK_PID": str(50 + number),
    }


def test_children_of_one_task_are_all_shown(table: Table) -> None:
    """Four workers that share the environment of a Slurm task are four ranks, numbered in the order of their starts.

    Workers of the same task with another rendezvous address are ranks of another job."""
    for pid in (4, 2, 3, 1):
        table.add_facts(owned(pid, task(0), ALICE, parent=50))
    table.tick(BINDING_SECONDS - 0.1)
    assert ranks(table) == {}
    table.tick(0.1)
    assert ranks(table) == {"0": 1, "1": 2, "2": 3, "3": 4}
    assert (sources(table), table.ranks.snapshot().duplicates) == ({"local_index"}, 0)
    for pid in (5, 6):
        table.add_facts(owned(pid, task(0) | {"MASTER_ADDR": "a", "MASTER_PORT": "1"}, ALICE, parent=60))
    table.tick(BINDING_SECONDS)
    other = group_job_id("4711", "a:1")
    assert (table.labels()[RankLabel(other, "0")], table.labels()[RankLabel(other, "1")]) == (5, 6)


def test_the_communicator_names_siblings_first(table: Table) -> None:
    """Siblings have the ranks of a communicator that appears within ten seconds."""
    for pid in (1, 2):
        key = table.add_facts(owned(pid, task(0), ALICE, parent=50))
        table.record(pid, [Membership(WORLD, 8 - pid, 8)], key)
    table.tick(BINDING_SECONDS)
    assert (ranks(table), sources(table)) == ({"7": 1, "6": 2}, {"communicator"})
    [expected] = [
        family
        for family in liveness_families.families(table.ranks.timed_snapshot())
        if family.family.name.endswith("expected_ranks")
    ]
    assert dict(zip(expected.labels, expected.values, strict=True)) == {("4711", "communicator"): 8}


@pytest.mark.parametrize("title", [VLLM, "sglang::scheduler_TP{}"])
def test_titles_name_siblings_that_start_one_after_the_other(title: str, table: Table) -> None:
    """A worker with a number in its title waits for workers with the other numbers."""
    for pid in (1, 2, 3, 4):
        table.add_facts(owned(pid, task(0), ALICE, parent=50, title=title.format(4 - pid)), then=2.0)
    table.tick(BINDING_SECONDS)
    assert (ranks(table), sources(table)) == ({"3": 1, "2": 2, "1": 3, "0": 4}, {"title"})


@pytest.mark.parametrize("title", [VLLM, "python"])
def test_what_a_task_says_is_not_said_of_those_who_share_it(title: str, table: Table) -> None:
    """Four workers of a step's only task do not take the rank and the local rank from the task's environment."""
    for pid in (1, 2, 3, 4):
        env = task(0) | {"SLURM_LOCALID": "0"}
        table.add_facts(owned(pid, env, ALICE, parent=50, title=title.format(pid)))
    table.tick(BINDING_SECONDS)
    snapshot = table.ranks.snapshot()
    shown = samples([*rank_families.families(snapshot), *liveness_families.families(snapshot)])
    assert not [entry for entry in shown if entry.name == "rankwatch_job_expected_ranks"]
    assert [entry.labels["world_size"] for entry in shown if entry.name == "rankwatch_job_info"] == [""]
    assert [entry.labels["local_rank"] for entry in shown if entry.name == "rankwatch_rank_info"] == [""] * 4
    assert set(map(size_of, table.ranks.snapshot().running.values())) == {None}


@pytest.mark.parametrize(("count", "shown"), [(MAX_SIBLINGS, MAX_SIBLINGS), (MAX_SIBLINGS + 1, 1)])
def test_siblings_are_bounded(count: int, shown: int, table: Table) -> None:
    """If more than MAX_SIBLINGS processes share an environment, one is a rank and the others are duplicates."""
    for pid in range(1, count + 1):
        table.add_facts(owned(pid, task(0), ALICE, parent=999))
    table.tick(BINDING_SECONDS)
    assert (len(ranks(table)), table.ranks.snapshot().duplicates) == (shown, count - shown)


def test_siblings_beyond_the_limit_of_claimants(table: Table) -> None:
    """Of 67 processes with one rank number, the four of a second parent are siblings with numbers of their own."""
    for pid in range(1, MAX_SIBLINGS + 4):
        table.add_facts(owned(pid, environment(0), ALICE, parent=50 if pid < MAX_SIBLINGS else 60))
    table.tick(BINDING_SECONDS)
    assert {"0", "0.1", "0.2", "0.3"} <= set(ranks(table))


def test_a_sibling_that_ends_before_the_next_tick(table: Table) -> None:
    """A sibling that is found and killed between two ticks is a rank with its exit status."""
    for pid in (1, 2):
        table.add_facts(owned(pid, task(0), ALICE, parent=50))
    table.tick(BINDING_SECONDS)
    table.ranks.observe_exit(table.add_facts(owned(3, task(0), ALICE, parent=50)), KILLED)
    assert (ranks(table), table.states()["2"]) == ({"0": 1, "1": 2, "2": 3}, "exited")


def test_a_rank_without_a_number_goes_by_its_pid(table: Table) -> None:
    """Ray's workers have their pid as rank in their job."""
    keys = [table.add_facts(owned(pid, {"RAY_JOB_ID": "01000000"}, ALICE)) for pid in (1, 2)]
    table.tick(BINDING_SECONDS - 0.1)
    assert table.labels() == {}
    table.tick(0.1)
    assert table.labels() == {RankLabel("01000000", "pid-1"): 1, RankLabel("01000000", "pid-2"): 2}
    table.ranks.observe_exit(keys[0], KILLED)
    assert (set(table.states()), sources(table)) == ({"pid-1", "pid-2"}, {"pid"})


@pytest.mark.parametrize(("env", "evidence"), [(None, "thread"), ({}, "library")])
def test_what_may_be_no_rank_is_not_named_by_pid(env: dict[str, str] | None, evidence: str, table: Table) -> None:
    """A process with an unreadable environment, or a possible notebook, has no label."""
    table.add_facts(owned(1, env, ALICE, evidence=evidence), then=BINDING_SECONDS)
    snapshot = table.ranks.snapshot()
    assert (snapshot.ranks, snapshot.unidentified, snapshot.unreadable) == ((), evidence == "thread", env is None)


@pytest.mark.parametrize(("title", "position"), [
    ("VLLM::Worker_DP0_PP0_TP3_EP3", (("DP", 0), ("PP", 0), ("TP", 3))),
    ("VLLM::Worker_TP11", (("TP", 11),)),
    ("sglang::scheduler_DP1_TP2", (("DP", 1), ("TP", 2))),
    ("sglang::scheduler_TP0", (("TP", 0),)),
    ("VLLM::EngineCore", ()),
    ("python train.py Worker_TP1", ()),
    ("", ()),
])  # fmt: skip
def test_titles(title: str, position: tuple[tuple[str, int], ...]) -> None:
    """Titles of vLLM's workers and SGLang's schedulers give axes and numbers; other titles give nothing."""
    assert coordinates_of(title) == position


def test_numbers_of_places() -> None:
    """The innermost axis changes fastest; equal positions, or positions with other axes, give no number."""
    places = [(("PP", pp), ("TP", tp)) for pp in range(2) for tp in range(4)]
    assert [number_of(position, places) for position in places] == list(range(8))
    assert number_of(places[0], [*places, places[0]]) is None
    assert number_of(places[0], [*places, (("TP", 0),)]) is None
    assert number_of((), [()]) is None
