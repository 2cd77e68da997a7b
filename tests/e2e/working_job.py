"""Jobs of two ranks that really work, and what holds one of them up: a hog, a limit, little memory, a slow disk, ..."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from working_rank import BLOCK

LATE_RANK, OTHER_RANK = 1, 0
RANKS = 2
WORK_SECONDS = 0.002
"""CPU time of a step, on a machine that does nothing else."""
DATA_BYTES = 24 * 1024 * 1024
GROUPS = Path("/sys/fs/cgroup")


def hashes_per_step() -> int:
    """How many hashes take WORK_SECONDS: the best of a few tries, as the machine may be busy."""
    best = float("inf")
    for _ in range(20):
        begun = time.thread_time()
        for _ in range(100):
            hashlib.sha256(BLOCK)
        best = min(best, (time.thread_time() - begun) / 100)
    return max(1, int(WORK_SECONDS / best))


def cold_file(path: Path) -> Path:
    """Write DATA_BYTES that are on disk and not in memory."""
    with path.open("wb") as file:
        file.write(os.urandom(DATA_BYTES))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


class WorkingJob:
    """A job of two processes at work, in ``directory``; a context manager."""

    def __init__(self, directory: Path, job_id: str, dump_dir: Path, burns: int, group: Path | None = None) -> None:
        """Start it: ``burns`` hashes a step; ``group``: the control group of the rank that is to be held up."""
        self.job_id = job_id
        directory.mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "meeting"))
        self._listener.listen()
        self.ranks = []
        for rank in range(RANKS):
            variables = {"SLURM_JOB_ID": job_id, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
            variables |= {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": str(dump_dir)}
            own = (dump_dir, rank, RANKS, directory / "meeting", cold_file(directory / f"data-{rank}"), burns)
            argv = [sys.executable, str(Path(__file__).with_name("working_rank.py")), *map(str, own)]
            if group is not None and rank == LATE_RANK:
                argv = ["sh", "-c", 'echo $$ >"$0"; exec "$@"', str(group / "cgroup.procs"), *argv]
            self.ranks.append(subprocess.Popen(argv, env={**os.environ, **variables}, start_new_session=True))
        self._meeting = threading.Thread(target=self._meet, daemon=True)
        self._meeting.start()

    @property
    def late(self) -> int:
        """The pid of the rank that is to be held up."""
        return self.ranks[LATE_RANK].pid

    @property
    def loader(self) -> int:
        """The pid of its data loader."""
        return int(Path(f"/proc/{self.late}/task/{self.late}/children").read_text().split()[0])

    def __enter__(self) -> WorkingJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGCONT)
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
        self._meeting.join()
        self._listener.close()

    def _meet(self) -> None:
        """Let all ranks go on when the last has come, for ever."""
        came = [self._listener.accept()[0] for _ in range(RANKS)]
        with contextlib.ExitStack() as stack:
            for each in came:
                stack.enter_context(each)
            with contextlib.suppress(OSError):
                while all(each.recv(1) for each in came):
                    for each in came:
                        each.sendall(b"!")


@contextlib.contextmanager
def doing_again(act: Callable[[], None]) -> Iterator[None]:
    """Do something over and over in a thread of its own."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def group_in(controller: str, name: str) -> Iterator[Path]:
    """Provide a fresh control group (v1), within the test's own, for the processes of a rank."""
    line = next(each for each in Path("/proc/self/cgroup").read_text().splitlines() if f":{controller}:" in each)
    own = GROUPS / controller / line.split(":", 2)[2].lstrip("/")
    group = own / f"{name}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (own / "cgroup.procs").write_text(left)
        group.rmdir()
