"""The job id of a rank: one owner has the plain id, and an owner with proof takes it from other owners."""

from itertools import islice

import pytest
from rank_table import KILLED, WORLD, Table, environment, owned

from agent.core.identity import Membership, RankLabel
from agent.ranks.expiry import ENDED_RANK_SECONDS
from agent.ranks.liveness.registry import CAUSE_SECONDS
from agent.ranks.naming.binding import BINDING_SECONDS
from agent.ranks.naming.job_owners import proof_of, suffixed
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import Owner
from agent.ranks.rank.process import RankProcess

POD = "c7a3f8b2-1f2e-4d5c-9a8b-7c6d5e4f3a2b"
CONTAINER = "0123456789abcdef" * 4
ALICE, MALLORY = Owner("user", "1000"), Owner("user", "1001")
SLURM = Owner("job", "slurm/4711", scheduler="slurm", job_id="4711", proof="cgroup")
OTHER_JOB = Owner("job", "slurm/4712", scheduler="slurm", job_id="4712", proof="parent")


def proofs(table: Table) -> dict[RankLabel, str]:
    """Return the proof of each rank's job."""
    return {view.label: proof_of(view.process) for view in table.ranks.snapshot().ranks}


def test_the_first_of_equal_claims_has_the_id(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Of two users without proof the first has the job's id; the second's id ends in the uid, and this is logged."""
    table.add_facts(owned(1, environment(0), ALICE), then=1.0)
    table.add_facts(owned(2, environment(0), MALLORY, uid=1001))
    table.add_facts(owned(3, environment(1), MALLORY, uid=1001), then=1.0)
    mine, first, second = RankLabel("4711", "0"), RankLabel("4711-u1001", "0"), RankLabel("4711-u1001", "1")
    assert table.labels() == {mine: 1, first: 2, second: 3}
    assert len([record for record in caplog.records if "of another owner" in record.message]) == 2
    assert set(proofs(table).values()) == {"none"}


@pytest.mark.parametrize(("owner", "expected"), [
    (MALLORY, "4711-u1001"),
    (Owner("pod", POD), "4711-pc7a3f8b2"),
    (Owner("container", CONTAINER), "4711-u1001"),
    (OTHER_JOB, "4711-u1001"),
])  # fmt: skip
def test_a_proven_job_takes_its_id_later(owner: Owner, expected: str, table: Table) -> None:
    """A proven job takes its plain id from an earlier user; the user's running and ended ranks get another id."""
    squatter = table.add_facts(owned(1, environment(0), owner, uid=1001))
    gone = table.add_facts(owned(2, environment(1), owner, uid=1001), then=1.0)
    table.ranks.observe_exit(gone, KILLED)
    table.tick(1.0)
    table.add_facts(owned(3, environment(0), SLURM), then=1.0)
    assert table.labels() == {RankLabel("4711", "0"): 3, RankLabel(expected, "0"): 1, RankLabel(expected, "1"): 2}
    assert table.ranks.process(squatter).labels == (RankLabel(expected, "0"),)
    disproved = owner is OTHER_JOB  # it never had the id
    assert (table.ranks.binder.renamed, proofs(table)[RankLabel("4711", "0")]) == (
        [] if disproved else ["4711"],
        "cgroup",
    )


def test_an_owner_without_a_free_id_gets_no_id_of_others(table: Table) -> None:
    """If root in a container claims both suffixed ids of a user, the user's rank gets a third id, not the plain id."""
    table.add_facts(owned(1, environment(0), SLURM), then=1.0)
    mallory = owned(2, environment(1), MALLORY, uid=1001)
    for pid, claimed in enumerate(islice(suffixed("4711", RankProcess(0.0, mallory)), 2), start=3):
        env = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": claimed}
        table.add_facts(owned(pid, env, Owner("container", CONTAINER), uid=0))
    table.tick(1.0)
    table.add_facts(mallory, then=1.0)
    assert len({label.job_id for label in table.labels()}) == 4


def test_a_proven_job_has_facts_of_its_own_ranks_only(table: Table) -> None:
    """The pause, the number of ranks and the valid exits of the id's earlier owner do not count for the proven job."""
    table.add_facts(owned(1, environment(1), MALLORY, uid=1001, user="mallory"))
    squatter = table.add_facts(owned(2, environment(2), MALLORY, uid=1001, user="mallory"), then=1.0)
    for seconds in (5000.0, 1.0):
        table.ranks.processes[squatter].note_progress(table.clock.time(), table.clock.time())
        table.tick(seconds)
    table.ranks.observe_exit(squatter, KILLED)
    table.tick(CAUSE_SECONDS)
    table.add_facts(owned(3, environment(0), SLURM), then=1.0)
    job = table.ranks.snapshot().jobs["4711"]
    assert (job.share, job.ranks, job.longest_pause, len(job.leads)) == ("alice", 1, 0.0, 1)
    assert job.leads[0].retracted_at is not None


def test_a_rank_that_waits_for_its_label_still_gets_it_under_another_id(table: Table) -> None:
    """A process that waits for another process's label gets it later, even if a proven job takes the id first."""
    first = table.add_facts(owned(1, environment(0), MALLORY, uid=1001), then=1.0)
    second = table.add_facts(owned(2, environment(0), MALLORY, uid=1001))
    table.ranks.observe_memberships(second, [Membership(WORLD, 0, 8)])
    table.tick(1.0)
    table.add_facts(owned(3, environment(0), SLURM), then=1.0)
    table.ranks.observe_exit(first, KILLED)
    table.tick(BINDING_SECONDS)
    assert table.labels() == {RankLabel("4711", "0"): 3, RankLabel("4711-u1001", "0"): 2}


def test_ids_of_a_scheduler_seen_here_need_a_proof(table: Table) -> None:
    """After a proven job of a scheduler, plain ids of that scheduler need a proof until the node restarts."""
    table.add_facts(owned(1, environment(0), SLURM), then=1.0)
    table.add_facts(owned(2, environment(0, job="9"), MALLORY, uid=1001))
    table.add_facts(owned(3, {"RANK": "0", "PBS_JOBID": "9"}, MALLORY, uid=1001), then=1.0)
    expected = {RankLabel("4711", "0"): 1, RankLabel("9-u1001", "0"): 2, RankLabel("9", "0"): 3}
    assert table.labels() == expected
    again = table.restarted()
    again.add_facts(owned(4, environment(0, job="10"), MALLORY, uid=1001), then=1.0)
    assert {view.label.job_id for view in again.ranks.snapshot().ranks if view.process.exited_at is None} == {
        "10-u1001"
    }


def test_an_id_is_free_when_nothing_of_its_owner_is_left(table: Table) -> None:
    """A dead rank keeps its job's id for its owner until its record expires; then another owner can have the id."""
    key = table.add_facts(owned(1, environment(0), ALICE), then=1.0)
    table.ranks.observe_exit(key, ExitStatus(known=True, signal=11))
    table.tick(ENDED_RANK_SECONDS - 10)
    table.add_facts(owned(2, environment(0), MALLORY, uid=1001), then=1.0)
    assert table.labels() == {RankLabel("4711", "0"): 1, RankLabel("4711-u1001", "0"): 2}
    table.tick(10.0)
    table.tick()
    table.add_facts(owned(3, environment(0), Owner("user", "1002"), uid=1002), then=1.0)
    assert table.labels() == {RankLabel("4711", "0"): 3, RankLabel("4711-u1001", "0"): 2}


def test_who_holds_an_id_survives_a_restart(table: Table) -> None:
    """The owner of an id keeps it when the agent restarts."""
    key = table.add_facts(owned(1, environment(0), ALICE), then=1.0)
    again = table.restarted()
    again.ranks.observe_state(key)
    again.add_facts(owned(2, environment(1), MALLORY, uid=1001), then=1.0)
    assert {view.label for view in again.ranks.snapshot().ranks} == {
        RankLabel("4711", "0"),
        RankLabel("4711-u1001", "1"),
    }


def test_pods_of_one_namespace_are_one_job(table: Table) -> None:
    """The pods of a job in one namespace share an id that begins with the namespace; other namespaces get other ids."""
    other, env = POD.replace("c7", "ff"), {"JOBSET_NAME": "train"}
    table.add_facts(owned(1, env | {"RANK": "0"}, Owner("pod", POD, "team-a", "train-0"), uid=0))
    table.add_facts(owned(2, env | {"RANK": "1"}, Owner("pod", other, "team-a", "train-1"), uid=0))
    table.add_facts(owned(3, env | {"RANK": "0"}, Owner("pod", other, "team-b", "train-0"), uid=0), then=1.0)
    assert table.labels() == {
        RankLabel("team-a/train", "0"): 1,
        RankLabel("team-a/train", "1"): 2,
        RankLabel("team-b/train", "0"): 3,
    }
    assert set(proofs(table).values()) == {"pod"}


def test_ranks_of_other_owners_are_no_witnesses(table: Table) -> None:
    """A crash of another owner's rank does not change the verdict of the job's ranks."""
    victims = [table.add_facts(owned(pid, environment(pid), SLURM)) for pid in (1, 2)]
    table.tick(1.0)
    forger = table.add_facts(owned(9, environment(9, world=16), MALLORY, uid=1001), then=1.0)
    table.ranks.observe_exit(forger, ExitStatus(known=True, signal=11))
    table.tick(1.0)
    for key in victims:
        table.ranks.observe_exit(key, ExitStatus(known=True))
    table.tick(1.0)
    views = {view.label: view.process.verdict for view in table.ranks.snapshot().ranks}
    states = {label: verdict.state for label, verdict in views.items() if verdict is not None}
    assert states == {
        RankLabel("4711", "1"): "finished",
        RankLabel("4711", "2"): "finished",
        RankLabel("4711-u1001", "9"): "dead",
    }


def test_configured_variables_name_the_job_first(table: Table) -> None:
    """The first configured variable that is not empty names the job, before the known variables."""
    env = environment(0) | {"SLURM_ARRAY_JOB_ID": "4700", "RUN": ""}
    table.ranks.job_id_variables = ("RUN", "SLURM_ARRAY_JOB_ID")
    assert "SLURM_ARRAY_JOB_ID" in table.ranks.kept_variables()
    table.add_facts(owned(1, env, SLURM), then=1.0)
    assert table.labels() == {RankLabel("4700", "0"): 1}
