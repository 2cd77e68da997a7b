"""Read the rank and job that a process' environment names. Pure. Users set the values, so each value has a limit."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

MAX_RANK = 1 << 20  # exclusive for a rank of a job of unknown size, inclusive for other numbers
MAX_LABEL_CHARACTERS = 128
MAX_GROUP_CHARACTERS = 255
"""Limit of a rendezvous address, and of its port, in characters: the longest host name (RFC 1035)."""
STEP = "step/"
"""Prefix of ``Claim.group`` if the group is a job step."""
_JOB_HASH_DIGITS = 12
_GROUP_HASH_DIGITS = 8

# For each launcher the variables with the rank and the number of ranks. The first pair with rank < size wins.
# torchrun and others; Open MPI; PMIx (srun --mpi=pmix sets no size); MPICH and Intel MPI; Slurm.
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
# Variables with job ids, each with its scheduler (empty: any launcher); the first variable that names a job wins.
_JOB_VARIABLES = {
    "SLURM_JOB_ID": "slurm", "SLURM_JOBID": "slurm", "MAD_SLURM_JOB_ID": "slurm", "PBS_JOBID": "pbs",
    "LSB_JOBID": "lsf", "TORCHELASTIC_RUN_ID": "", "RAY_JOB_ID": "", "JOBSET_NAME": "",
}  # fmt: skip
_RESTART_VARIABLES = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT", "JOBSET_RESTART_ATTEMPT")
# torchrun's limit of restarts, and the number of restarts so far.
_MAX_RESTARTS, _RESTART_COUNT = "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"
_TEXT_VARIABLES = ("SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME", "SLURM_JOB_NUM_NODES", "SLURM_TASK_PID")
_JOB_NAME_VARIABLES = ("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME")
_NO_RUN_ID = frozenset({"", "none", "0", "ffffffff"})  # ffffffff: a Ray worker that started before its job
_LOOPBACK = re.compile(r"^(localhost|127\.|::1|\[::1\])", re.IGNORECASE)
_DECIMAL = re.compile(r"[0-9]{1,7}", re.ASCII)

KEPT_VARIABLES = frozenset(
    {name for pair in _RANK_VARIABLES for name in pair}
    | {*_LOCAL_RANK_VARIABLES, *_JOB_VARIABLES, *_JOB_NAME_VARIABLES, *_RESTART_VARIABLES, *_TEXT_VARIABLES}
    | {_MAX_RESTARTS, _RESTART_COUNT}
    | {"MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_GTIDS"}
)
"""Variables that name the rank and its job."""

MAX_SETTING_CHARACTERS = 1024
"""Limit of the value of a variable kept for an exporter (``RankWriter.keep_variables``); longer values are cut."""


class Claim(msgspec.Struct, frozen=True):
    """The rank and the job that an environment names. ``rank`` None: no rank is named; ``job_id`` empty: no job.

    ``group`` distinguishes process groups under one job id: rendezvous address and port, else Slurm's job step, else
    empty. ``scheduler``: the scheduler that gave ``job_id``; empty if a launcher such as torchrun gave the id, or if
    the id is a hash. ``task``: the pid of the Slurm task; all child processes of the task inherit it. ``tasks``: number
    of tasks of the job step; ``local_tasks``: number of the step's tasks on this node. ``nodes``, ``restarts``: numbers
    as text. ``restarts_left``: restarts that the launcher can still make; None if unknown.
    """

    rank: int | None = None
    local_rank: str = ""
    world_size: int | None = None
    job_id: str = ""
    job_name: str = ""
    group: str = ""
    scheduler: str = ""
    task: str = ""
    tasks: int | None = None
    local_tasks: int | None = None
    partition: str = ""
    cluster: str = ""
    nodes: str = ""
    restarts: str = ""
    restarts_left: int | None = None


def read_claim(
    environment: Mapping[str, str],
    hostname: str,
    job_id_variables: Sequence[str] = (),
    proven: tuple[str, str] = ("", ""),
) -> Claim:
    """Return the rank and the job that ``environment`` names.

    ``hostname``: this node's host name with its network namespace; it replaces a loopback address of the rendezvous.
    ``job_id_variables``: variables with the job id, tried first. ``proven``: (job id, scheduler) proven for the
    process, used if the environment names no job.
    """
    rank, world_size = _rank(environment)
    local = next((n for name in _LOCAL_RANK_VARIABLES if (n := _number(environment.get(name))) is not None), None)
    rendezvous, step = _rendezvous(environment, hostname), _number(environment.get("SLURM_STEP_ID"))
    job_id, scheduler = _job(environment, job_id_variables)
    if not job_id:
        job_id, scheduler = proven
    name = next((environment[name] for name in _JOB_NAME_VARIABLES if environment.get(name)), "")
    partition, cluster, nodes, task = (clean_label(environment.get(variable, "")) for variable in _TEXT_VARIABLES)
    return Claim(
        rank=rank,
        local_rank="" if local is None else str(local),
        world_size=world_size,
        job_id=job_id or (job_hash(rendezvous) if rendezvous else ""),
        job_name=clean_label(name),
        group=rendezvous or ("" if step is None else f"{STEP}{step}"),
        scheduler=scheduler,
        task=task,
        tasks=_number(environment.get("SLURM_STEP_NUM_TASKS")),
        local_tasks=len(local_tasks.split(",")) if (local_tasks := environment.get("SLURM_GTIDS", "")) else None,
        partition=partition,
        cluster=cluster,
        nodes=nodes,
        restarts=next(
            (clean_label(environment[variable]) for variable in _RESTART_VARIABLES if environment.get(variable)), ""
        ),
        restarts_left=_restarts_left(environment),
    )


def group_job_id(job_id: str, group: str) -> str:
    """Return the id of a process group if several groups share ``job_id``: the job id and a hash of ``group``."""
    return f"{job_id}-{hashlib.blake2s(group.encode()).hexdigest()[:_GROUP_HASH_DIGITS]}"


def job_hash(text: str) -> str:
    """Return an id for a job without a name: ``job-`` and twelve hexadecimal digits of a hash of ``text``."""
    return f"job-{hashlib.blake2s(text.encode('utf-8', 'replace')).hexdigest()[:_JOB_HASH_DIGITS]}"


def clean_label(text: str) -> str:
    """Return a job's text as a label value: printable characters, at most MAX_LABEL_CHARACTERS.

    ``<`` and ``>`` become ``?``: in a notification ``<`` can start a mention or a link (Slack's ``<!channel>``, HTML).
    """
    shown = (c if c.isprintable() and c not in "<>" else "?" for c in text[:MAX_LABEL_CHARACTERS])
    return "".join(shown).strip()


def _rank(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    for rank_name, size_name in _RANK_VARIABLES:
        rank, size = _number(environment.get(rank_name)), _number(environment.get(size_name))
        if rank is not None and rank < (size if size is not None else MAX_RANK):
            return rank, size
    return None, _number(environment.get("WORLD_SIZE"))


def _job(environment: Mapping[str, str], preferred: Sequence[str]) -> tuple[str, str]:
    """Return the job's id and the scheduler that gave it; both empty if no variable names a job."""
    for name in (*preferred, *_JOB_VARIABLES):
        job_id = clean_label(environment.get(name, ""))
        if job_id.lower() not in _NO_RUN_ID:
            return job_id, _JOB_VARIABLES.get(name, "")
    return "", ""


def _rendezvous(environment: Mapping[str, str], hostname: str) -> str:
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address or not port:
        return ""
    host = hostname if _LOOPBACK.match(address) else address
    return f"{host[:MAX_GROUP_CHARACTERS]}:{port[:MAX_GROUP_CHARACTERS]}"


def _restarts_left(environment: Mapping[str, str]) -> int | None:
    most, count = _number(environment.get(_MAX_RESTARTS)), _number(environment.get(_RESTART_COUNT))
    return None if most is None or count is None else max(most - count, 0)


def _number(text: str | None) -> int | None:
    digits = (text or "").strip()
    if not _DECIMAL.fullmatch(digits):
        return None
    number = int(digits)
    return number if number <= MAX_RANK else None
