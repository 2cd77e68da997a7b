"""Who a process says it is: the rank and job named by its environment. Pure; the words are the job's, so bounded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

MAX_RANK = 1 << 20
MAX_LABEL_CHARACTERS = 128
MAX_GROUP_CHARACTERS = 255
"""Of an address and of a port: no host name is longer (RFC 1035)."""
_JOB_HASH_DIGITS = 12
_GROUP_HASH_DIGITS = 8

# The launcher's word for the rank, and for the number of ranks it must lie below; the first pair that fits wins.
# torchrun and others; Open MPI; PMIx (srun --mpi=pmix gives no size); MPICH and Intel MPI; Slurm.
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_SCHEDULER_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID")
_JOB_NAME_VARIABLES = ("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME")
_NO_RUN_ID = frozenset({"", "none", "0"})
_LOOPBACK = re.compile(r"^(localhost|127\.|::1|\[::1\])", re.IGNORECASE)
_DECIMAL = re.compile(r"[0-9]{1,7}", re.ASCII)

KEPT_VARIABLES = frozenset(
    {name for pair in _RANK_VARIABLES for name in pair}
    | {*_LOCAL_RANK_VARIABLES, *_SCHEDULER_VARIABLES, *_JOB_NAME_VARIABLES}
    | {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}
)
"""The variables that identity is made of; besides these only RECORDING_VARIABLES are kept of an environment."""

RECORDING_VARIABLES = frozenset(
    {
        "NCCL_PROFILER_PLUGIN",
        "NCCL_INSPECTOR_ENABLE",
        "NCCL_INSPECTOR_DUMP_THREAD_ENABLE",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS",
        "NCCL_INSPECTOR_DUMP_DIR",
        "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
        "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE",
        "NCCL_INSPECTOR_PROM_DUMP",
        "SLURM_JOBID",
    }
)
"""The variables that say whether, where and how a process writes records."""
MAX_SETTING_CHARACTERS = 1024
"""Of the value of one of these: a longer one is cut."""


class Claim(msgspec.Struct, frozen=True):
    """What an environment claims. ``rank`` None: it names none. ``job_id`` empty: it names none.

    ``group`` tells process groups under one job id apart (rendezvous address and port); empty when not known.
    """

    rank: int | None = None
    local_rank: str = ""
    world_size: int | None = None
    job_id: str = ""
    job_name: str = ""
    group: str = ""


def read_claim(environment: Mapping[str, str], hostname: str) -> Claim:
    """Return what ``environment`` claims; ``hostname`` (this node's, and
    which of its network namespaces) makes a loopback rendezvous this node's own."""
    rank, world_size = _rank(environment)
    local = next((n for name in _LOCAL_RANK_VARIABLES if (n := _number(environment.get(name))) is not None), None)
    group = _group(environment, hostname)
    job_id = _scheduler_job(environment) or (short_hash("job", group) if group else "")
    name = next((environment[name] for name in _JOB_NAME_VARIABLES if environment.get(name)), "")
    return Claim(rank, "" if local is None else str(local), world_size, job_id, clean(name), group)


def recording_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environment`` that says whether, where and how the process writes records."""
    return {name: environment[name][:MAX_SETTING_CHARACTERS] for name in RECORDING_VARIABLES & environment.keys()}


def communicator_job_id(comm: str) -> str:
    """The id of a job that nothing names: a hash of its world communicator."""
    return short_hash("job", comm)


def group_job_id(job_id: str, group: str) -> str:
    """The id of one of several groups under one scheduler's id."""
    return f"{job_id}-{hashlib.blake2s(group.encode()).hexdigest()[:_GROUP_HASH_DIGITS]}"


def short_hash(prefix: str, text: str) -> str:
    """Return ``prefix-`` and twelve digits that stand for ``text``."""
    return f"{prefix}-{hashlib.blake2s(text.encode('utf-8', 'replace')).hexdigest()[:_JOB_HASH_DIGITS]}"


def clean(text: str) -> str:
    """Make a job's word fit for a label: printable, bounded."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_LABEL_CHARACTERS]).strip()


def _rank(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    for rank_name, size_name in _RANK_VARIABLES:
        rank, size = _number(environment.get(rank_name)), _number(environment.get(size_name))
        if rank is not None and rank < (size if size is not None else MAX_RANK):
            return rank, size
    return None, _number(environment.get("WORLD_SIZE"))


def _scheduler_job(environment: Mapping[str, str]) -> str:
    for name in _SCHEDULER_VARIABLES:
        if job_id := clean(environment.get(name, "")):
            return job_id
    run_id = clean(environment.get("TORCHELASTIC_RUN_ID", ""))
    return "" if run_id.lower() in _NO_RUN_ID else run_id


def _group(environment: Mapping[str, str], hostname: str) -> str:
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address or not port:
        return ""
    place = hostname if _LOOPBACK.match(address) else address
    return f"{place[:MAX_GROUP_CHARACTERS]}:{port[:MAX_GROUP_CHARACTERS]}"


def _number(text: str | None) -> int | None:
    digits = (text or "").strip()  # int() itself takes less for blanks than strip() does
    if not _DECIMAL.fullmatch(digits):
        return None
    number = int(digits)
    return number if number <= MAX_RANK else None
