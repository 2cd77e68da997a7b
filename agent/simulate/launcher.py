"""Start the rank processes of one host, cause the requested accidents, and end the ranks as torchrun or srun would."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent.simulate.job import Job, decode
from agent.simulate.layout import STEP
from agent.simulate.progress import END_REQUESTED, FAILED, SharedProgress

POLL_SECONDS = 0.02
PR_SET_PDEATHSIG = 1
"""prctl(2): sets the signal for the parent's death. The setting survives exec; forked children do not inherit it."""

JOB_ID_VARIABLE = {"slurm": "SLURM_JOB_ID", "torchrun": "TORCHELASTIC_RUN_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}
FOREIGN_PREFIXES = ("SLURM_", "PBS_", "LSB_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

KNOWN_SIGNALS = {known.name.removeprefix("SIG"): known for known in signal.Signals}


class Launcher:
    """Launches the ranks of one host. ``emit`` receives one JSON line per event."""

    def __init__(self, job: Job, emit: Callable[[str], object]) -> None:
        self._job = job
        self._emit = emit
        self._progress = SharedProgress(f"{job.job_dir}/board", job.ranks)
        self._groups = job.processes()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._received_signals: set[int] = set()
        self._ready_at: float | None = None
        self._killed = False
        self._give_up_at: float | None = None
        self._sigkill_at: float | None = None
        self._all_well = True

    def run(self) -> int:
        """Run the job to its end; return 0 if every rank on this host exited with status 0, else 1."""
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(signal_number, lambda number, _frame: self._received_signals.add(number))
        self._event("launcher", pid=os.getpid(), job_dir=self._job.job_dir, dump_dir=self._job.dump_dir)
        try:
            for index, ranks in enumerate(self._groups):
                self._running[index] = self._start(index, ranks)
                self._event("started", rank=ranks[0], ranks=list(ranks), pid=self._running[index].pid)
            while self._running:
                self._tick(time.monotonic())
                time.sleep(POLL_SECONDS)
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()
            self._job.end_marker().touch()
        self._event("ended", exit_code=0 if self._all_well else 1)
        return 0 if self._all_well else 1

    def _start(self, index: int, ranks: tuple[int, ...]) -> subprocess.Popen[bytes]:
        # -S: the ranks need only the standard library; site-packages would slow down their start.
        command = [sys.executable, "-S", "-m", "agent.simulate.rank", str(self._job.file()), str(index)]
        return subprocess.Popen(  # noqa: S603  # our own module
            command,
            env=rank_environment(self._job, ranks, os.environ, sys.path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_prepare_rank,  # noqa: PLW1509  # this process has no threads
        )

    def _tick(self, now: float) -> None:
        self._reap(now)
        self._notice_ready(now)
        self._obey(now)
        if self._ready_at is not None and not self._killed and now >= self._ready_at + self._job.kill_at_seconds:
            self._killed = True
            self._hurt()
        if self._give_up_at is not None and now >= self._give_up_at:
            self._terminate(now, "over_time")
        if self._job.teardown != "none" and self._progress.header[FAILED]:
            self._terminate(now, "teardown")
        if self._sigkill_at is not None and now >= self._sigkill_at:
            self._sigkill_at = now + self._job.grace_seconds
            self._signal_all(signal.SIGKILL)

    def _reap(self, now: float) -> None:
        for index, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[index]
            ranks = self._groups[index]
            self._event("exited", rank=ranks[0], ranks=list(ranks), pid=process.pid, **_how_it_left(status))
            if status != 0:
                self._all_well = False
                if self._job.teardown != "none" and self._sigkill_at is None:
                    self._progress.header[FAILED] = 1
                    self._terminate(now, "teardown")

    def _notice_ready(self, now: float) -> None:
        if self._ready_at is None and self._progress.initialised():
            self._ready_at = now
            children = {str(self._groups[index][0]): _children(process.pid) for index, process in self._running.items()}
            self._event("ready", data_loaders=children)
            if self._job.duration_seconds:
                self._give_up_at = now + self._job.duration_seconds + self._end_takes_seconds()

    def _obey(self, now: float) -> None:
        received, self._received_signals = self._received_signals, set()
        if signal.SIGUSR1 in received:
            self._progress.header[END_REQUESTED] = 1
            self._give_up_at = now + self._end_takes_seconds()
            self._event("end_requested")
        if received & {signal.SIGTERM, signal.SIGINT}:
            self._terminate(now, "cancelled")

    def _end_takes_seconds(self) -> float:
        """Return the longest time of an orderly end: this step, the next, a recreation between them, and the grace."""
        between_seconds = self._job.recreate_seconds if self._job.recreate_every_steps else 0.0
        return self._job.grace_seconds + between_seconds + 3 * len(STEP) / self._job.records_per_second

    def _hurt(self) -> None:
        for index, process in self._running.items():
            if {*self._groups[index]} & {*self._job.kill_ranks}:
                self._event("killing", rank=self._groups[index][0], pid=process.pid, signal=self._job.kill_signal)
                process.send_signal(KNOWN_SIGNALS[self._job.kill_signal])

    def _terminate(self, now: float, event: str) -> None:
        if self._sigkill_at is not None:  # the end has already begun
            return
        self._sigkill_at = now + self._job.grace_seconds
        self._event(event)
        self._signal_all(signal.SIGTERM)
        if self._job.teardown == "srun":  # Slurm wakes stopped tasks, so that they can die
            self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        for process in self._running.values():
            process.send_signal(number)

    def _event(self, event: str, **facts: object) -> None:
        self._emit(json.dumps({"event": event, "timestamp_seconds": time.time(), **facts}) + "\n")


def prepare(job: Job) -> None:
    """Create the directories and write the job file for the ranks.

    Raises FileExistsError if this host already ran its ranks in ``job_dir``, OSError if a write fails, ValueError if
    another host has a different job.
    """
    Path(job.job_dir).mkdir(exist_ok=True)
    for other in Path(job.job_dir).glob("job-*.json"):
        if other != job.file() and (name := job.difference(decode(other.read_text()))):
            raise ValueError(f"{name} differs from {other}: the hosts of a job must agree")
    Path(job.dump_dir).mkdir(exist_ok=True)
    # With a link other hosts see only the complete file, and an old file is never replaced.
    draft = job.file().with_suffix(".draft")
    draft.write_text(job.encode())
    try:
        os.link(draft, job.file())
    finally:
        draft.unlink()


def rank_environment(
    job: Job, ranks: tuple[int, ...], inherited: Mapping[str, str], module_path: Sequence[str]
) -> dict[str, str]:
    """Return the environment of the process of ``ranks``.

    Variables of other jobs are removed from ``inherited``; ``module_path``: where the process finds this package. A
    process of several ranks has no RANK.
    """
    variables = {
        name: value
        for name, value in inherited.items()
        if name not in RANK_VARIABLES and not name.startswith(FOREIGN_PREFIXES)
    }
    variables["SLURM_JOB_NAME"] = "simulated"
    variables["PYTHONPATH"] = ":".join(entry for entry in module_path if entry)
    if job.scheduler in JOB_ID_VARIABLE:
        variables[JOB_ID_VARIABLE[job.scheduler]] = job.job_id
    if not job.rank_environment:
        return variables
    variables |= {
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks_per_host),
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
    }
    if len(ranks) == 1:
        variables |= {"RANK": str(ranks[0]), "LOCAL_RANK": str(ranks[0] % job.ranks_per_host)}
    return variables


def _how_it_left(status: int) -> dict[str, int | str]:
    if status >= 0:
        return {"code": status}
    return {
        "signal": next((f"SIG{name}" for name, known in KNOWN_SIGNALS.items() if known == -status), f"SIG{-status}")
    }


_LIBC = ctypes.CDLL(None, use_errno=True)


def _prepare_rank() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # gone already
        return []
