"""The command ``rankwatch simulate``."""

import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent.simulate.job import Job
from agent.simulate.launcher import KNOWN_SIGNALS, Launcher, prepare
from agent.simulate.layout import make_layout
from agent.simulate.options import make_parser

EASY_TP = 4


def main(argv: Sequence[str]) -> int:
    """Run the job that ``argv`` (without the program's name) asks for; return the exit code.

    0: every rank exited with status 0; 1: some did not; 2 (by SystemExit): wrong options, one line explains.
    """
    parser = make_parser()
    job = Job(**vars(parser.parse_args(argv)))
    if not job.tp:
        job = job._replace(tp=math.gcd(EASY_TP, job.ranks_per_host))
    if mistake := find_mistake(job):
        parser.error(mistake)
    with tempfile.TemporaryDirectory(prefix="rankwatch-simulate-") as temporary:
        job = job._replace(job_dir=job.job_dir or temporary)
        job = job._replace(dump_dir=job.dump_dir or str(Path(job.job_dir, "inspector")))
        try:
            prepare(job)
        except FileExistsError:
            parser.error(f"{job.file()} is there already: give each job a --job-dir of its own")
        except ValueError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"cannot use {error.filename}: {error.strerror}")
        return Launcher(job, _emit).run()


def find_mistake(job: Job) -> str | None:
    """Return what makes no sense in ``job``, in one line, or None."""
    try:
        make_layout(job.ranks, job.hosts, job.tp, job.job_id, job.seed)
    except ValueError as error:
        return str(error)
    named = {each for each in (job.straggler, job.slow_link, job.stuck) if each is not None}
    strangers = sorted((named | {*job.kill_ranks, *job.exit_ranks, *job.slow_sigterm_ranks}) - {*range(job.ranks)})
    refusals = (
        (job.host_index >= job.hosts, f"--host-index {job.host_index} is not one of {job.hosts} hosts (from 0)"),
        (job.hosts > 1 and not job.job_dir, "more than one host needs --job-dir, the same for all"),
        (
            job.ranks_per_host % job.ranks_per_process > 0,
            f"--ranks-per-process {job.ranks_per_process} does not divide {job.ranks_per_host} ranks per host",
        ),
        (bool(strangers), f"there is no rank {strangers[:1]} among {job.ranks} (from 0)"),
        (job.kill_signal not in KNOWN_SIGNALS, f"--kill-signal {job.kill_signal} is no signal (KILL, SEGV, STOP ...)"),
        (job.exit_code > 255, f"--exit-code {job.exit_code} is more than 255"),
    )
    return next((message for refused, message in refusals if refused), None)


def _emit(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
