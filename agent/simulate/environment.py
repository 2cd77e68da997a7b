"""The environment a rank is started with, as torchrun and the schedulers set it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.simulate.job import Job

JOB_ID_VARIABLE = {
    "slurm": "SLURM_JOB_ID",
    "torchrun": "TORCHELASTIC_RUN_ID",
    "pbs": "PBS_JOBID",
    "lsf": "LSB_JOBID",
}
FOREIGN_PREFIXES = ("SLURM_", "PBS_", "LSB_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank_environment(
    job: Job, ranks: tuple[int, ...], inherited: Mapping[str, str], module_path: Sequence[str]
) -> dict[str, str]:
    """Return the environment of the process that holds ``ranks``.

    Names of another job are taken out of ``inherited``; ``module_path`` is where the process finds this package. A
    process of several ranks has no RANK of its own.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in RANK_VARIABLES and not name.startswith(FOREIGN_PREFIXES)
    }
    kept["PYTHONPATH"] = ":".join(entry for entry in module_path if entry)
    if job.scheduler in JOB_ID_VARIABLE:
        kept[JOB_ID_VARIABLE[job.scheduler]] = job.job_id
    if not job.rank_environment:
        return kept
    kept |= {
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks_per_host),
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
    }
    if len(ranks) == 1:
        kept |= {"RANK": str(ranks[0]), "LOCAL_RANK": str(ranks[0] % job.ranks_per_host)}
    return kept
