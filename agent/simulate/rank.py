"""A process of one or several simulated ranks: ``python -m agent.simulate.rank JOB.json N``.

The launcher starts this process. It imports only the standard library, so that it starts fast and stays small.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from agent.simulate.job import Job, decode
from agent.simulate.physics import make_plan
from agent.simulate.progress import (
    END_OPERATION,
    END_REQUESTED,
    RankProgress,
    SharedProgress,
    Timeline,
    orderly_end,
    run_ahead_operations,
)
from agent.simulate.writer import InspectorFile

POLL_SECONDS = 0.01
LOADER_POLL_SECONDS = 0.1
STAY_SECONDS = 60.0
"""Longest life of a data-loader worker after its rank's end."""
THREAD_NAME = "NCCL RAS"
"""Name of NCCL's thread with NCCL_SET_THREAD_NAME=1."""


class SimulatedRank:
    """The ranks of one process, and their Inspector file."""

    def __init__(self, job: Job, ranks: tuple[int, ...]) -> None:
        self._job = job
        self._launcher = os.getppid()
        self._terminated_at: float | None = None
        signal.signal(signal.SIGTERM, self._note_sigterm)
        plan = make_plan(job)
        self._step_operations = len(plan.layout.step)
        self._run_ahead = run_ahead_operations(plan)
        self._progress = SharedProgress(f"{job.job_dir}/board", job.ranks)
        self._timeline = Timeline(plan)
        stuck_at = job.stuck_at_step * self._step_operations
        self._ranks = [
            RankProgress(rank, plan, self._timeline, self._progress, stuck_at if rank == job.stuck else None)
            for rank in ranks
        ]
        self._recreate_at = job.recreate_every_steps * self._step_operations or None
        self._file = self._open_file()
        fork_data_loaders(job.dataloaders, job.end_marker(), self._launcher)
        start_library_thread()

    def run(self) -> int:
        """Run the ranks to their end; return the exit status, or end by SIGTERM if it was received."""
        for rank in self._ranks:
            self._progress.show(rank.rank, 0)
        while not self._progress.initialised() and not self._must_leave():
            time.sleep(POLL_SECONDS)
        started = time.monotonic()
        for rank in self._ranks:
            rank.start(started)
        status = self._train(started)
        self._write_summary()
        if self._terminated_at is not None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        return status

    def _train(self, started: float) -> int:
        job = self._job
        leaves_at = started + job.exit_at_seconds if {rank.rank for rank in self._ranks} & {*job.exit_ranks} else None
        next_dump = started
        while not self._must_leave():
            now = time.monotonic()
            if leaves_at is not None and now >= leaves_at:
                return job.exit_code
            end = self._end_operation(now - started)
            stop = min((at for at in (end, self._recreate_at) if at is not None), default=None)
            for rank in self._ranks:
                rank.advance(now, stop)
            self._timeline.forget_before(min(rank.completed for rank in self._ranks))
            if now >= next_dump:
                self._dump()
                next_dump = now + job.dump_interval_us / 1e6
            if all(rank.completed == stop for rank in self._ranks):
                self._destroy()
                if stop == end:
                    return 0
                self._recreate()
            time.sleep(POLL_SECONDS)
        if self._terminated_at is not None and {rank.rank for rank in self._ranks} & {*job.slow_sigterm_ranks}:
            # Wait as long as the slow SIGTERM handler of a rank in this process takes.
            time.sleep(max(0.0, self._terminated_at + job.slow_sigterm_seconds - time.monotonic()))
        return 1

    def _destroy(self) -> None:
        """Close the file, as the plugin does after ncclCommDestroy of all communicators."""
        if self._job.flush_at_end:
            self._dump()
        self._file.close()

    def _recreate(self) -> None:
        """Recreate all communicators, as ncclCommInitRank does: the plugin reopens the file of the same name."""
        made_at = time.monotonic() + self._job.recreate_seconds
        while time.monotonic() < made_at and not self._must_leave():
            time.sleep(POLL_SECONDS)
        if self._must_leave():
            return
        for rank in self._ranks:
            rank.recreate()
        self._recreate_at = self._ranks[0].completed + self._job.recreate_every_steps * self._step_operations
        self._file = self._open_file()

    def _open_file(self) -> InspectorFile:
        return InspectorFile(self._job.dump_dir, os.uname().nodename, os.getpid())

    def _dump(self) -> None:
        self._file.dump([log for rank in self._ranks for log in rank.logs])

    def _end_operation(self, elapsed_seconds: float) -> int | None:
        """Return the last operation, which rank 0 chooses when the time is up or when an end was requested."""
        chosen = self._progress.header[END_OPERATION] or self._job.steps * self._step_operations
        if chosen or self._ranks[0].rank != 0:
            return chosen or None
        time_is_up = 0 < self._job.duration_seconds <= elapsed_seconds
        if time_is_up or self._progress.header[END_REQUESTED]:
            chosen = orderly_end(self._ranks[0].arrived, self._run_ahead, self._step_operations)
            self._progress.header[END_OPERATION] = chosen
        return chosen or None

    def _must_leave(self) -> bool:
        return self._terminated_at is not None or os.getppid() != self._launcher

    def _note_sigterm(self, _signal: int, _frame: object) -> None:
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()

    def _write_summary(self) -> None:
        for rank in self._ranks:
            records = [
                {"comm": log.communicator.id, "collective": collective, "size_bytes": size, "records": count}
                for log in rank.past_logs + rank.logs
                for (collective, size), count in sorted(log.written.items())
            ]
            summary = {
                "rank": rank.rank,
                "pid": os.getpid(),
                "file": self._file.path,
                "file_bytes": self._file.bytes_written,
                "completed": rank.completed,
                "overflowed": sum(log.overflowed for log in rank.past_logs + rank.logs),
                "records": records,
            }
            Path(self._job.job_dir, f"written-{rank.rank}.json").write_text(json.dumps(summary))


def start_library_thread() -> None:
    """Start a thread with the name of NCCL's thread."""
    has_name = threading.Event()

    def stay() -> None:
        try:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)
        finally:
            has_name.set()
        threading.Event().wait()

    threading.Thread(target=stay, daemon=True).start()
    has_name.wait()


def fork_data_loaders(count: int, end_marker: Path, launcher: int) -> None:
    """Fork ``count`` data-loader workers, which inherit environment and open files. Call this before starting threads.

    A worker exits when ``end_marker`` exists, when the process ``launcher`` is gone, or STAY_SECONDS after its parent's
    end.
    """
    parent = os.getpid()
    for _ in range(count):
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _be_quiet()
                _stay(parent, end_marker, launcher)
            finally:  # the child must never continue as a second rank
                os._exit(0)


def _be_quiet() -> None:
    """Close standard error; otherwise a reader of the launcher's output would wait for this worker's end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _stay(parent: int, end_marker: Path, launcher: int) -> None:
    orphan_since: float | None = None
    while not end_marker.exists() and _alive(launcher):
        now = time.monotonic()
        if orphan_since is None and os.getppid() != parent:
            orphan_since = now
        if orphan_since is not None and now - orphan_since > STAY_SECONDS:
            return
        time.sleep(LOADER_POLL_SECONDS)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie launcher is dead


if __name__ == "__main__":
    job = decode(Path(sys.argv[1]).read_text())
    sys.exit(SimulatedRank(job, job.processes()[int(sys.argv[2])]).run())
