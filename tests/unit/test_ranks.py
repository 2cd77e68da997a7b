"""The rank table: identity and its freezing, incarnations, tombstones, the checkpoint."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV, SIGTERM

import msgspec
import pytest
from fake_clock import FakeClock

from agent import rank_families
from agent.claims import communicator_job_id, group_job_id
from agent.identity import Membership, Origin, ProcessKey, RankLabel
from agent.origins import MAX_ORIGINS, ORIGIN_IDLE_SECONDS
from agent.procfs import ProcessFacts
from agent.ranks import BINDING_SECONDS, FINISHED_SECONDS, MAX_MEMBERSHIPS, MAX_PROCESSES, TOMBSTONE_SECONDS, RankTable
from agent.verdict import ExitStatus

WORLD = "aaaaaaaaaaaaaa"
TENSOR = "bbbbbbbbbbbbbb"
KILLED = ExitStatus(known=True, signal=SIGKILL)


def environment(rank: int, world: int = 8, job: str = "4711", port: str = "29500") -> dict[str, str]:
    """What Slurm and torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 4),
        "WORLD_SIZE": str(world),
        "SLURM_JOB_ID": job,
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": port,
    }


def facts(pid: int, env: dict[str, str] | None = None) -> ProcessFacts:
    """A rank process."""
    return ProcessFacts(ProcessKey(pid, 5000), 1.7e9, pid, "alice", "thread", env)


def origin(pid: int, generation: int = 0) -> Origin:
    """A writer with its own file."""
    return Origin(64, pid, generation, "here", pid)


class Table:
    """A table and its clock."""

    def __init__(self, once: bool = False) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=once)

    def add(self, pid: int, env: dict[str, str] | None = None) -> ProcessKey:
        found = facts(pid, env)
        assert self.ranks.observe_process(found)
        return found.key

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.ranks.tick()

    def labels(self) -> dict[RankLabel, int]:
        return {v.label: v.process.facts.key.pid for v in self.ranks.snapshot().ranks if v.process.facts}

    def states(self) -> dict[str, str]:
        views = self.ranks.snapshot().ranks
        return {v.label.rank: v.process.verdict.state for v in views if v.process.verdict is not None}


@pytest.fixture
def table() -> Table:
    """An empty table."""
    return Table()


def test_environment_names_the_rank(table: Table) -> None:
    """A process with an environment gets its global rank and job once it had a second to show its siblings."""
    table.add(1, environment(3))
    table.tick()
    assert table.labels() == {}
    table.tick(1.0)
    assert table.labels() == {RankLabel("4711", "3"): 1}


def test_world_communicator_settles_at_once(table: Table) -> None:
    """Once the world communicator is seen there is nothing to wait for."""
    key = table.add(1, environment(3))
    table.ranks.observe_records(origin(1), [Membership(WORLD, 3, 8)], None)
    table.ranks.link(origin(1), key)
    table.tick()
    assert table.labels() == {RankLabel("4711", "3"): 1}
    assert table.ranks.label(origin(1), WORLD, 3) == RankLabel("4711", "3")


def test_without_environment_the_largest_communicator_names_the_rank(table: Table) -> None:
    """Without an environment the binding waits ten seconds and takes the rank in the largest communicator."""
    key = table.add(1, None)
    table.ranks.observe_records(origin(1), [Membership(TENSOR, 1, 4), Membership(WORLD, 5, 8)], None)
    table.ranks.link(origin(1), key)
    table.tick(BINDING_SECONDS - 0.1)
    assert table.labels() == {}
    table.tick(0.1)
    assert table.labels() == {RankLabel(communicator_job_id(WORLD), "5"): 1}


def test_death_publishes_what_is_known(table: Table) -> None:
    """A process that dies before it is bound is bound at its death."""
    key = table.add(1, environment(3))
    table.ranks.observe_exit(key, KILLED)
    assert table.labels() == {RankLabel("4711", "3"): 1}


def test_binding_is_frozen(table: Table) -> None:
    """A world communicator that contradicts a published label is counted and changes nothing."""
    key = table.add(1, environment(3))
    table.tick(1.0)
    table.ranks.observe_records(origin(1), [Membership(WORLD, 6, 8)], None)
    table.ranks.link(origin(1), key)
    table.tick(60.0)
    assert table.labels() == {RankLabel("4711", "3"): 1}
    assert table.ranks.snapshot().conflicts == 1


def test_node_rank_in_the_environment(table: Table) -> None:
    """Siblings that all claim RANK 1 carry their node's rank: the world communicator names them."""
    for pid in (1, 2):
        key = table.add(pid, environment(1))
        table.ranks.observe_records(origin(pid), [Membership(WORLD, 7 + pid, 16)], None)
        table.ranks.link(origin(pid), key)
    table.tick(1.0)
    assert table.labels() == {}
    table.tick(BINDING_SECONDS)
    assert table.labels() == {RankLabel("4711", "8"): 1, RankLabel("4711", "9"): 2}


def test_duplicates_are_counted_not_exported(table: Table) -> None:
    """Two live processes of one group with the same rank and no communicator: one is exported, one counted."""
    first, _ = table.add(1, environment(1)), table.add(2, environment(1))
    table.tick(BINDING_SECONDS)
    assert list(table.labels().values()) == [1]
    assert table.ranks.snapshot().duplicates == 1
    table.ranks.observe_exit(first, KILLED)
    table.tick(1.0)
    assert list(table.labels().values()) == [2]
    assert table.ranks.snapshot().duplicates == 0


def test_groups_under_one_job_id(table: Table) -> None:
    """A second group with the same ranks under the same job id gets the group's hash appended."""
    table.add(1, environment(0, port="1000"))
    table.tick(1.0)
    table.add(2, environment(0, port="2000"))
    table.tick(1.0)
    assert len(table.labels()) == 1
    table.tick(BINDING_SECONDS)
    assert table.labels() == {RankLabel("4711", "0"): 1, RankLabel(group_job_id("4711", "node-a:2000"), "0"): 2}


def test_restart_takes_over_the_tombstone(table: Table) -> None:
    """A restarted rank is a new incarnation: it takes its label, and the old tombstone is gone from the table."""
    old = table.add(1, environment(3))
    table.tick(1.0)
    table.ranks.observe_exit(old, KILLED)
    assert table.states() == {"3": "exited"}
    table.add(2, environment(3, port="29511"))  # an elastic restart meets at another port
    table.tick(1.0)
    assert table.labels() == {RankLabel("4711", "3"): 2}
    assert table.states() == {"3": "alive"}


def test_old_incarnation_is_no_witness(table: Table) -> None:
    """A rank that restarted does not make its siblings' tombstones deaths: it is no peer of theirs."""
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, signal=SIGTERM))
    table.add(11, environment(1))
    table.tick(60.0)
    assert table.states() == {"1": "alive", "2": "exited"}


def test_victim_never_becomes_a_culprit(table: Table) -> None:
    """When the tombstone of the first crash is taken down before its victims', none of these is named dead."""
    keys = [table.add(pid, environment(pid)) for pid in range(3)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, signal=SIGSEGV))
        table.clock.advance(10.0)
    assert table.states() == {"0": "dead", "1": "exited", "2": "exited"}
    table.tick(TOMBSTONE_SECONDS - 29.0)
    table.tick(1.0)
    assert table.states() == {"1": "exited", "2": "exited"}


def test_victim_of_a_restarted_rank(table: Table) -> None:
    """When the rank that crashed first is started anew, its victims' tombstones stay what they were."""
    keys = [table.add(pid, environment(pid)) for pid in range(3)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, code=1))
        table.clock.advance(0.3)
    table.add(10, environment(0))
    table.tick(1.0)
    table.tick(1.0)
    assert table.states() == {"0": "alive", "1": "exited", "2": "exited"}


def test_death_outlives_its_peers(table: Table) -> None:
    """A rank killed before its peers stays dead after they finished and their tombstones are gone."""
    killed, peer = (table.add(pid, environment(pid)) for pid in range(2))
    table.tick(1.0)
    table.ranks.observe_exit(killed, KILLED)
    table.tick(20.0)
    table.ranks.observe_state(peer, "S", None, kill_pending=False, finalized=True)
    table.ranks.observe_exit(peer, ExitStatus(known=True))
    assert table.states() == {"0": "dead", "1": "finished"}
    table.tick(FINISHED_SECONDS + 1.0)
    table.tick(1.0)
    assert table.states() == {"0": "dead"}


def test_job_that_ended_while_the_agent_was_down(table: Table) -> None:
    """Ranks that left unseen are no proof that they outlived the one whose exit was seen."""
    first, second = (table.add(pid, environment(pid)) for pid in range(2))
    table.tick(1.0)
    table.ranks.observe_exit(first, ExitStatus(known=True, signal=SIGTERM))
    saved = table.ranks.dump()
    again = Table()
    again.clock.now = table.clock.now + 100.0
    again.ranks.load(saved)
    assert again.states() == {"0": "exited"}
    again.ranks.observe_exit(second, None)
    again.tick(1.0)
    assert again.states() == {"0": "exited", "1": "exited"}
    still = Table()
    still.clock.now = table.clock.now + 100.0
    still.ranks.load(saved)
    still.ranks.confirm(second)
    still.tick()
    assert still.states() == {"0": "dead", "1": "alive"}


def test_tombstones_give_way_to_live_ranks(table: Table) -> None:
    """A table full of tombstones takes a live rank in place of the oldest; one full of live ranks refuses."""
    keys = [table.add(pid, environment(pid % 8, job=str(pid))) for pid in range(MAX_PROCESSES)]
    assert not table.ranks.observe_process(facts(5000))
    for key in (keys[7], keys[3]):
        table.ranks.observe_exit(key, KILLED)
        table.clock.advance(1.0)
    assert table.ranks.observe_process(facts(5000))
    shown = {view.process.facts.key for view in table.ranks.snapshot().ranks if view.process.facts}
    assert keys[3] in shown
    assert keys[7] not in shown


def test_host_names_go_with_their_ranks(table: Table) -> None:
    """A container's host name counts as this node's while its rank is in the table, also after a restart."""
    key = table.add(1, environment(1))
    writer = Origin(64, 1, 0, "trainer-0", 1)
    table.ranks.observe_records(writer, [Membership(WORLD, 1, 8)], None)
    table.ranks.link(writer, key)
    assert table.ranks.hostnames == {"here", "trainer-0"}
    again = Table()
    again.ranks.load(table.ranks.dump())
    assert again.ranks.hostnames == {"here", "trainer-0"}
    table.tick(1.0)
    table.ranks.observe_exit(key, KILLED)
    table.tick(TOMBSTONE_SECONDS + 1.0)
    assert table.ranks.hostnames == {"here"}


def test_earlier_fillings_of_a_file_expire(table: Table) -> None:
    """Of a file that its live rank begins anew, earlier fillings expire when idle; the last one never does."""
    key = table.add(1, environment(1))
    for generation in range(2):
        table.ranks.observe_records(origin(1, generation), [Membership(WORLD, 1, 8)], None)
        table.ranks.link(origin(1, generation), key)
    table.tick(1.0)
    table.tick(ORIGIN_IDLE_SECONDS)
    assert table.ranks.is_expired(origin(1, 0))
    assert not table.ranks.is_expired(origin(1, 1))
    assert table.labels() == {RankLabel("4711", "1"): 1}


def test_duplicate_after_a_restart_of_the_agent(table: Table) -> None:
    """A duplicate is still one after a restart, and takes the label when its holder is gone."""
    holder, _ = table.add(1, environment(0)), table.add(2, environment(0))
    table.tick(BINDING_SECONDS)
    again = Table()
    again.ranks.load(table.ranks.dump())
    assert again.ranks.snapshot().duplicates == 1
    again.ranks.confirm(ProcessKey(2, 5000))
    again.ranks.observe_exit(holder, KILLED)
    again.tick(1.0)
    assert again.labels() == {RankLabel("4711", "0"): 2}


def test_duplicate_that_left_takes_no_tombstone(table: Table) -> None:
    """A duplicate that left does not take the place of the holder when that leaves too."""
    holder, duplicate = table.add(1, environment(0)), table.add(2, environment(0))
    table.tick(BINDING_SECONDS)
    table.ranks.observe_exit(duplicate, KILLED)
    table.ranks.observe_exit(holder, KILLED)
    table.tick(1.0)
    assert table.labels() == {RankLabel("4711", "0"): 1}


def test_partial_duplicate_keeps_its_labels(table: Table) -> None:
    """A process of two ranks, one of them another's, keeps the other label when a larger communicator appears."""
    table.add(1, environment(0, world=2))
    key = table.add(2, environment(7) | {"RANK": ""})
    table.ranks.observe_records(origin(2), [Membership(TENSOR, 0, 2), Membership(TENSOR, 1, 2)], None)
    table.ranks.link(origin(2), key)
    table.tick(BINDING_SECONDS)
    bound = table.labels()
    table.ranks.observe_records(origin(2), [Membership(WORLD, 4, 8), Membership(WORLD, 5, 8)], None)
    table.tick(1.0)
    assert table.labels() == bound == {RankLabel("4711", "0"): 1, RankLabel("4711", "1"): 2}


def test_loopback_rendezvous_of_two_pods(table: Table) -> None:
    """Two jobs that meet at 127.0.0.1:29500 in network namespaces of their own are two jobs, and both are shown."""
    env = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for pid, namespace in ((1, 4026532001), (2, 4026532002), (3, 4026532002)):
        found = msgspec.structs.replace(facts(pid, env | {"RANK": str(pid)}), network_namespace=namespace)
        table.ranks.observe_process(found)
    table.tick(1.0)
    job_of = {label.rank: label.job_id for label in table.labels()}
    assert job_of["1"] != job_of["2"] == job_of["3"]


def test_several_ranks_in_one_process(table: Table) -> None:
    """A process of four ranks gets four labels, and smaller communicators are matched by order."""
    key = table.add(1, environment(1))
    places = [Membership(WORLD, n, 8) for n in (4, 5, 6, 7)] + [Membership(TENSOR, n, 4) for n in range(4)]
    table.ranks.observe_records(origin(1), places, None)
    table.ranks.link(origin(1), key)
    table.tick(BINDING_SECONDS)
    assert sorted(label.rank for label in table.labels()) == ["4", "5", "6", "7"]
    assert table.ranks.label(origin(1), TENSOR, 2) == RankLabel("4711", "6")


def test_rank_that_cannot_be_told(table: Table) -> None:
    """In a process of several ranks, a communicator of some of them has the rank `unknown` after ten seconds."""
    key = table.add(1, environment(1))
    table.ranks.observe_records(origin(1), [Membership(WORLD, n, 8) for n in (4, 5, 6, 7)], None)
    table.ranks.link(origin(1), key)
    table.tick(BINDING_SECONDS)
    table.ranks.observe_records(origin(1), [Membership(TENSOR, 0, 2)], None)
    assert table.ranks.label(origin(1), TENSOR, 0) is None
    table.tick(BINDING_SECONDS)
    assert table.ranks.label(origin(1), TENSOR, 0) == RankLabel("4711", "unknown")


def test_unseen_writer_gives_way(table: Table) -> None:
    """Records whose process is found late keep their label when it is the same, without a conflict."""
    table.ranks.observe_records(origin(1), [Membership(WORLD, 5, 8)], None)
    table.tick(BINDING_SECONDS)
    label = table.ranks.label(origin(1), WORLD, 5)
    assert label == RankLabel(communicator_job_id(WORLD), "5")
    assert table.labels() == {}  # no process was seen: nothing is said of its life
    key = table.add(1, None)
    table.ranks.link(origin(1), key)
    table.tick(BINDING_SECONDS)
    assert table.ranks.label(origin(1), WORLD, 5) == label
    assert table.ranks.snapshot().conflicts == 0


def test_unidentified_and_unreadable_are_counted(table: Table) -> None:
    """A rank process that nobody names is counted, and so is one whose environment may not be read."""
    table.add(1, None)
    table.tick(100.0)
    snapshot = table.ranks.snapshot()
    assert (snapshot.unidentified, snapshot.unreadable, snapshot.ranks) == (1, 1, ())


def test_tombstones(table: Table) -> None:
    """A dead rank is shown for 15 minutes, a finished one for one; then their records' series may go too."""
    dead, well = table.add(1, environment(1, job="1")), table.add(2, environment(2, job="2"))
    table.ranks.observe_records(origin(1), [Membership(WORLD, 1, 8)], None)
    table.ranks.link(origin(1), dead)
    table.tick(1.0)
    table.ranks.observe_exit(dead, ExitStatus(known=True, signal=SIGSEGV))
    table.ranks.observe_exit(well, ExitStatus(known=True))
    assert table.states() == {"1": "dead", "2": "finished"}
    table.tick(FINISHED_SECONDS + 0.1)
    assert table.states() == {"1": "dead"}
    table.tick(TOMBSTONE_SECONDS - FINISHED_SECONDS - 0.1)
    assert table.states() == {"1": "dead"}
    assert not table.ranks.is_expired(origin(1))
    table.tick(0.2)
    assert table.states() == {}
    assert table.ranks.is_expired(origin(1))


def test_idle_writer_expires(table: Table) -> None:
    """Records without a process expire after 15 idle minutes; a linked writer lives as long as its process."""
    key = table.add(1, environment(1))
    for pid in (1, 2):
        table.ranks.observe_records(origin(pid), [Membership(WORLD, pid, 8)], None)
    table.ranks.link(origin(1), key)
    table.tick(ORIGIN_IDLE_SECONDS + 0.1)
    assert table.ranks.is_expired(origin(2))
    assert not table.ranks.is_expired(origin(1))
    table.ranks.observe_records(origin(2), [], None)
    assert not table.ranks.is_expired(origin(2))


def test_progress_is_never_in_the_future(table: Table) -> None:
    """A record from a clock ahead of ours counts as now, and an older one does not turn progress back."""
    key = table.add(1, environment(1))
    table.ranks.observe_records(origin(1), [], table.clock.time() + 3600)
    table.ranks.link(origin(1), key)
    table.ranks.observe_records(origin(1), [], table.clock.time() - 3600)
    table.tick(1.0)
    progress = table.ranks.snapshot().ranks[0].process.progress_seconds
    assert progress is not None
    assert progress <= table.clock.time() + 2


def test_checkpoint_keeps_everything(table: Table) -> None:
    """A new table from the checkpoint shows tombstones at once, and live ranks when they are confirmed."""
    gone, lives = table.add(1, environment(1)), table.add(2, environment(2))
    table.ranks.observe_records(origin(2), [Membership(WORLD, 2, 8, "world", 2)], table.clock.time())
    table.ranks.link(origin(2), lives)
    table.tick(1.0)
    table.ranks.observe_exit(gone, ExitStatus(known=True, signal=SIGSEGV))
    again = RankTable(table.clock, "here")
    again.load(table.ranks.dump())
    assert [v.label.rank for v in again.snapshot().ranks] == ["1"]
    assert set(again.processes()) == {lives}
    again.confirm(lives)
    again.tick()
    assert again.snapshot() == table.ranks.snapshot()
    assert again.label(origin(2), WORLD, 2) == RankLabel("4711", "2")


def test_rank_that_vanished_while_the_agent_was_down(table: Table) -> None:
    """A rank of the checkpoint that is found gone has exited; with a peer alive 45 s later it is dead."""
    gone, lives = table.add(1, environment(1)), table.add(2, environment(2))
    table.tick(1.0)
    again = Table()
    again.clock.advance(30.0)
    again.ranks.load(table.ranks.dump())
    again.ranks.confirm(lives)
    again.ranks.observe_exit(gone, None)
    assert again.states() == {"1": "exited", "2": "alive"}
    again.tick(45.0)
    assert again.states() == {"1": "dead", "2": "alive"}


def test_garbage_checkpoint(table: Table) -> None:
    """A section that is none raises ValueError."""
    with pytest.raises(ValueError, match=r".+"):
        table.ranks.load(b"\x93\x01\x02")


def test_single_pass_settles_at_once() -> None:
    """In a single pass over files every writer is bound at the first tick by its largest communicator."""
    table = Table(once=True)
    for pid in (1, 2):
        table.ranks.observe_records(origin(pid), [Membership(TENSOR, 0, 4), Membership(WORLD, pid, 8)], None)
    table.tick()
    assert table.ranks.label(origin(2), TENSOR, 0) == RankLabel(communicator_job_id(WORLD), "2")


def test_bounds(table: Table) -> None:
    """One process, writer or membership over the bound is refused and counted."""
    for pid in range(MAX_PROCESSES):
        table.add(pid)
    assert not table.ranks.observe_process(facts(MAX_PROCESSES))
    for pid in range(MAX_ORIGINS + 1):
        table.ranks.observe_records(origin(pid), [], None)
    table.ranks.observe_records(origin(0), [Membership(f"{n:x}", 0, 2) for n in range(MAX_MEMBERSHIPS + 1)], None)
    assert table.ranks.label(origin(MAX_ORIGINS), WORLD, 0) is None
    assert table.ranks.snapshot().refused == 3


def exposition(table: Table) -> set[str]:
    """The table's samples as name{values} value."""
    return {
        f"{s.name}{{{','.join(s.labels.values())}}} {s.value:g}"
        for family in rank_families.families(table.ranks.snapshot())
        for s in family.samples
    }


def test_families_of_live_and_dead(table: Table) -> None:
    """A live rank has info, a dead one exit series and no info; members and jobs are counted."""
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    for pid, key in zip((1, 2), keys, strict=True):
        table.ranks.observe_records(origin(pid), [Membership(WORLD, pid, 8, "world", 2)], None)
        table.ranks.link(origin(pid), key)
    table.tick(1.0)
    table.ranks.observe_exit(keys[0], KILLED)
    lines = exposition(table)
    assert "rankwatch_rank_up{4711,1} 0" in lines
    assert "rankwatch_rank_up{4711,2} 1" in lines
    assert "rankwatch_rank_exit_info{4711,1,signaled,SIGKILL,} 1" in lines
    assert "rankwatch_rank_info{4711,2,2,,,,,2,alice,,} 1" in lines
    assert not [line for line in lines if line.startswith("rankwatch_rank_info{4711,1")]
    assert "rankwatch_communicator_member_info{4711,aaaaaaaaaaaaaa,2,2} 1" in lines
    assert "rankwatch_communicator_info{4711,aaaaaaaaaaaaaa,world,8,2} 1" in lines
    assert "rankwatch_job_ranks{4711,exited} 1" in lines
    assert "rankwatch_job_ranks{4711,alive} 1" in lines
    assert "rankwatch_job_expected_ranks{4711,environment} 8" in lines
    assert "rankwatch_job_expected_ranks{4711,communicator} 8" in lines


@pytest.mark.parametrize(
    ("status", "labels"),
    [
        (None, "unknown,,"),
        (ExitStatus(known=False), "unknown,,"),
        (ExitStatus(known=True), "exited,,0"),
        (ExitStatus(known=True, code=3), "exited,,3"),
        (ExitStatus(known=True, signal=SIGSEGV), "signaled,SIGSEGV,"),
        (ExitStatus(known=True, signal=SIGKILL, oom=True), "oom_killed,SIGKILL,"),
        (ExitStatus(known=True, signal=40), "signaled,40,"),
    ],
)
def test_exit_info(table: Table, status: ExitStatus | None, labels: str) -> None:
    """How a rank ended is told in words that do not change with the platform."""
    key = table.add(1, environment(1))
    table.ranks.observe_exit(key, status)
    assert f"rankwatch_rank_exit_info{{4711,1,{labels}}} 1" in exposition(table)
