"""The command ``rankwatch simulate`` and its options."""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from agent.simulate.job import Job
from agent.simulate.launcher import JOB_ID_VARIABLE, KNOWN_SIGNALS, Launcher, prepare
from agent.simulate.layout import make_layout

DESCRIPTION = """\
Run a simulated job: real processes that write NCCL Inspector files as NCCL 2.30 does, with no GPU.

One launcher starts the ranks of one host; several launchers with the same --job-dir, --hosts, --job-id and --seed and
their own --host-index make one job. Each event is one line of JSON on standard output. SIGUSR1 ends the job in order,
SIGTERM and SIGINT cancel it. Times of accidents count from the moment when all ranks of the job are initialised.
"""

DEFAULT = Job(job_dir="", dump_dir="", ranks=8)
EASY_TP = 4


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors have one line."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` to standard error and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> Parser:
    """Return the parser; its destinations are the fields of :class:`Job`."""
    parser = Parser(
        prog="rankwatch simulate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument_group("the job").add_argument
    add("--ranks", type=whole(2), default=DEFAULT.ranks, metavar="N", help="ranks of the whole job (8)")
    add("--hosts", type=whole(1), default=1, metavar="H", help="hosts of the ranks (1)")
    add("--host-index", type=whole(0), default=0, metavar="I", help="index of this launcher's host (0)")
    add("--tp", type=whole(1), default=0, metavar="T", help="ranks per tensor-parallel group (4, or a divisor)")
    add("--job-id", metavar="ID", help=f"the id, as shown by the agent ({DEFAULT.job_id}, shown only with --scheduler)")
    add("--seed", type=whole(0), default=0, metavar="N", help="equal seeds and job ids give equal hashes and times (0)")
    rate = DEFAULT.records_per_second
    add("--records-per-second", type=positive, default=rate, metavar="R", help=f"of a healthy rank ({rate:g})")
    add("--steps", type=whole(0), default=0, metavar="N", help="end in order after N steps (0: never)")
    add("--duration", dest="duration_seconds", type=amount, default=0.0, metavar="SECONDS",
        help="end in order after this time, and cancel ranks that do not end within the grace (0: never)")  # fmt: skip
    add = parser.add_argument_group("the files").add_argument
    add("--job-dir", default="", metavar="DIR", help="the job's own directory, shared by its hosts (a temporary one)")
    add("--dump-dir", default="", metavar="DIR", help="directory of Inspector files (JOB_DIR/inspector)")
    add("--dump-interval-us", type=whole(1), default=DEFAULT.dump_interval_us, metavar="US",
        help=f"interval of dump passes ({DEFAULT.dump_interval_us})")  # fmt: skip
    add("--flush-at-end", action="store_true", help="make a last dump pass at an orderly end (RCCL does, NCCL not)")
    add = parser.add_argument_group("the appearance of the processes").add_argument
    add("--scheduler", choices=[*JOB_ID_VARIABLE, "none"], help="the ranks have this scheduler's job id variable "
        "(torchrun, or none without --job-id)")  # fmt: skip
    add("--no-rank-environment", dest="rank_environment", action="store_false",
        help="leave out RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT")  # fmt: skip
    add("--master-addr", default=DEFAULT.master_addr, metavar="HOST", help=f"MASTER_ADDR ({DEFAULT.master_addr})")
    add("--master-port", type=whole(0), default=DEFAULT.master_port, metavar="PORT", help=f"({DEFAULT.master_port})")
    add("--dataloaders", type=whole(0), default=1, metavar="K", help="workers forked by each process (1)")
    add("--ranks-per-process", type=whole(1), default=1, metavar="M", help="ranks in one process and file (1)")
    add = parser.add_argument_group("slowness").add_argument
    add("--straggler", type=whole(0), metavar="RANK", help="a rank that computes longer before each operation")
    add("--straggler-delay-us", type=amount, default=DEFAULT.straggler_delay_us, metavar="US", help="this much longer")
    add("--slow-link", type=whole(0), metavar="RANK", help="a rank whose network link is slow")
    add("--slow-link-factor", type=positive, default=DEFAULT.slow_link_factor, metavar="F",
        help="factor of the duration of transfers over the link")  # fmt: skip
    add = parser.add_argument_group("accidents and ends").add_argument
    add("--kill", dest="kill_ranks", type=ranks, default=(), metavar="RANKS", help="ranks (1 or 1,2,5) to signal")
    add("--kill-at", dest="kill_at_seconds", type=amount, default=0.0, metavar="SECONDS", help="when")
    add("--kill-signal", default="KILL", metavar="NAME", help="KILL, SEGV, ABRT, TERM, STOP ... (KILL)")
    add("--exit", dest="exit_ranks", type=ranks, default=(), metavar="RANKS", help="ranks that exit by themselves")
    add("--exit-code", type=whole(0), default=1, metavar="N", help="exit status of these ranks (1)")
    add("--exit-at", dest="exit_at_seconds", type=amount, default=0.0, metavar="SECONDS", help="when")
    add("--stuck", type=whole(0), metavar="RANK", help="a rank that lives but stops working")
    add("--stuck-at-step", type=whole(0), default=0, metavar="K", help="the step that it does not begin (0)")
    add("--recreate-every", dest="recreate_every_steps", type=whole(0), default=0, metavar="K",
        help="steps after which all communicators and their files are recreated (0: never)")  # fmt: skip
    add("--recreate-seconds", type=amount, default=DEFAULT.recreate_seconds, metavar="SECONDS",
        help=f"duration of a recreation ({DEFAULT.recreate_seconds:g})")  # fmt: skip
    add("--teardown", choices=["none", "torchrun", "srun"], default="none",
        help="when a rank dies: leave or end the other ranks (SIGTERM, then SIGKILL; srun: SIGCONT too)")  # fmt: skip
    add("--grace", dest="grace_seconds", type=amount, default=DEFAULT.grace_seconds, metavar="SECONDS",
        help=f"from SIGTERM to SIGKILL ({DEFAULT.grace_seconds:g})")  # fmt: skip
    add("--slow-sigterm-ranks", type=ranks, default=(), metavar="RANKS", help="ranks that exit late after SIGTERM")
    add("--slow-sigterm-seconds", type=amount, default=DEFAULT.slow_sigterm_seconds, metavar="SECONDS", help="how long")
    return parser


def whole(least: int) -> Callable[[str], int]:
    """Return a converter to an int of at least ``least``."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return convert


def ranks(text: str) -> tuple[int, ...]:
    """Return the ranks in ``1,2,5``."""
    return tuple(whole(0)(number) for number in text.split(","))


def amount(text: str) -> float:
    """Return a float of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def positive(text: str) -> float:
    """Return a float above 0."""
    value = amount(text)
    if value == 0.0:
        raise argparse.ArgumentTypeError("it must be more than 0")
    return value


def job_of(flags: argparse.Namespace) -> Job:
    """Return the job of the flags. Without a scheduler, a given job id counts as torchrun's."""
    flags.scheduler = flags.scheduler or ("none" if flags.job_id is None else "torchrun")
    flags.job_id = flags.job_id or DEFAULT.job_id
    return Job(**vars(flags))


def main(argv: Sequence[str]) -> int:
    """Run the job of ``argv`` (without the program's name); return the exit status.

    0: every rank exited with status 0; 1: a rank did not; 2 (by SystemExit): wrong options, explained in one line.
    """
    parser = make_parser()
    job = job_of(parser.parse_args(argv))
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
            parser.error(f"{job.file()} exists already: give each job its own --job-dir")
        except ValueError as error:
            parser.error(str(error))
        except OSError as error:
            parser.error(f"cannot use {error.filename}: {error.strerror}")
        return Launcher(job, _emit).run()


def find_mistake(job: Job) -> str | None:
    """Return the first error in ``job`` in one line, or None."""
    try:
        layout = make_layout(job.ranks, job.hosts, job.tp, job.job_id, job.seed)
    except ValueError as error:
        return str(error)
    single = {rank for rank in (job.straggler, job.slow_link, job.stuck) if rank is not None}
    strangers = sorted((single | {*job.kill_ranks, *job.exit_ranks, *job.slow_sigterm_ranks}) - {*range(job.ranks)})
    refusals = (
        (job.host_index >= job.hosts, f"--host-index {job.host_index} is not one of {job.hosts} hosts (from 0)"),
        (job.hosts > 1 and not job.job_dir, "more than one host needs --job-dir, the same for all"),
        (
            job.ranks_per_host % job.ranks_per_process > 0,
            f"--ranks-per-process {job.ranks_per_process} does not divide {job.ranks_per_host} ranks per host",
        ),
        (bool(strangers), f"there is no rank {strangers[:1]} among {job.ranks} (from 0)"),
        (job.kill_signal not in KNOWN_SIGNALS, f"--kill-signal {job.kill_signal} is not a signal (KILL, SEGV ...)"),
        (
            job.slow_link is not None and not any(comm.network for comm in layout.of(job.slow_link)),
            f"no communicator of rank {job.slow_link} uses the network: use a smaller --tp or more --hosts",
        ),
        (job.exit_code > 255, f"--exit-code {job.exit_code} is more than 255"),
    )
    return next((message for refused, message in refusals if refused), None)


def _emit(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
