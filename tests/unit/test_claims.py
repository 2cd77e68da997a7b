"""The job and rank that the environment of a process gives."""

import pytest
from hypothesis import given, strategies as st

from agent.ranks.rank.environment import (
    KEPT_VARIABLES,
    MAX_GROUP_CHARACTERS,
    MAX_LABEL_CHARACTERS,
    clean_label,
    read_claim,
)

TORCHRUN = {
    "RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "exp7",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "llama", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1",
}  # fmt: skip


@pytest.mark.parametrize(("environment", "rank", "world", "job"), [
    (TORCHRUN, 11, 16, "exp7"),
    (SLURM, 5, 8, "4711"),
    ({**SLURM, **TORCHRUN}, 11, 16, "4711"),  # torchrun under srun: SLURM_PROCID is the node's number
    ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "LSB_JOBID": "77"}, 2, 4, "77"),
    ({"PMIX_RANK": "2", "SLURM_NTASKS": "4", "SLURM_JOBID": "9"}, 2, 4, "9"),
    ({"PMI_RANK": "0", "PMI_SIZE": "2", "PBS_JOBID": "12.server"}, 0, 2, "12.server"),
    ({"RAY_JOB_ID": "01000000"}, None, None, "01000000"),
    ({"RAY_JOB_ID": "ffffffff"}, None, None, ""),  # Ray starts workers before their job is known
    ({"RANK": "8", "WORLD_SIZE": "8", **SLURM}, 5, 8, "4711"),  # a rank outside its world is invalid
    ({"RANK": "-1", **SLURM}, 5, 8, "4711"),
    ({"RANK": "1e3"}, None, None, ""),
    ({"RANK": "99999999999999999999"}, None, None, ""),
    ({"RANK": "1٣"}, None, None, ""),
    ({"RANK": "3"}, 3, None, ""),
    ({}, None, None, ""),
    ({"WORLD_SIZE": "8"}, None, 8, ""),
])  # fmt: skip
def test_rank_and_job(environment: dict[str, str], rank: int | None, world: int | None, job: str) -> None:
    """The rank is that of the first launcher whose rank is below its world size; the job is the scheduler's raw id."""
    claim = read_claim(environment, "here")
    assert (claim.rank, claim.world_size, claim.job_id) == (rank, world, job)


@pytest.mark.parametrize(("most", "count", "restarts"), [
    ("3", "0", 3), ("3", "1", 2), ("3", "3", 0), ("0", "0", 0), ("1", "2", 0), ("1048576", "0", 1 << 20),
    ("1048577", "0", None), ("3", "1048577", None), ("-1", "0", None), ("3", "-1", None), ("3", "", None),
    ("", "0", None), ("3", None, None), (None, "0", None), ("1e3", "0", None),
])  # fmt: skip
def test_restarts_left(most: str | None, count: str | None, restarts: int | None) -> None:
    """The restarts left are torchrun's limit minus the restarts, at least 0, if both numbers are valid."""
    variables = {"TORCHELASTIC_MAX_RESTARTS": most, "TORCHELASTIC_RESTART_COUNT": count}
    environment = {name: value for name, value in variables.items() if value is not None}
    assert read_claim(environment, "here").restarts_left == restarts
    assert environment.keys() <= KEPT_VARIABLES


def test_label_bound() -> None:
    """A label is cut at its limit, and unprintable characters are replaced."""
    assert clean_label("x" * (MAX_LABEL_CHARACTERS + 1)) == "x" * MAX_LABEL_CHARACTERS
    assert (clean_label("<!channel> R&D"), clean_label('a\n"b\x00\u202e')) == ("?!channel? R&D", 'a?"b??')


def test_bound_of_the_group() -> None:
    """A rendezvous address above the limit is cut, because the agent keeps it for every rank process."""
    at_bound, over = (
        read_claim({"MASTER_ADDR": "a" * n, "MASTER_PORT": "p" * n}, "here").group
        for n in (MAX_GROUP_CHARACTERS, MAX_GROUP_CHARACTERS + 1)
    )
    assert at_bound == over == "a" * 255 + ":" + "p" * 255


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted({*TORCHRUN, *SLURM, "PMI_RANK", "PMI_SIZE"})), st.text(max_size=200)))
def test_hostile_environment(environment: dict[str, str]) -> None:
    """Any environment gives a claim of limited length and printable characters."""
    claim = read_claim(environment, "here")
    assert claim.rank is None or 0 <= claim.rank < 1 << 20
    for text in (claim.job_id, claim.job_name, claim.local_rank):
        assert len(text) <= MAX_LABEL_CHARACTERS
        assert text.isprintable()
