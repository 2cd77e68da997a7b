"""A job of real Python processes that hangs when the test signals one of its ranks; see hanging_rank.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path


class HangingJob:
    """Ranks that meet in every step; SIGUSR1, sent by ``tell``, makes a rank wait for a batch that never comes.

    ``directory`` is the job's."""

    def __init__(self, directory: Path, job_id: str, ranks: int) -> None:
        self._size = ranks
        self.dump_dir = directory / "inspector"
        self.dump_dir.mkdir(parents=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "meeting"))
        self._listener.listen(ranks)
        self.ranks = []
        for rank in range(ranks):
            variables = {"SLURM_JOB_ID": job_id, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
            own = (self.dump_dir, rank, ranks, directory / "meeting")
            argv = [sys.executable, str(Path(__file__).with_name("hanging_rank.py")), *map(str, own)]
            self.ranks.append(subprocess.Popen(argv, env={**os.environ, **variables}, stderr=subprocess.DEVNULL))
        self._meeting = threading.Thread(target=self._meet, daemon=True)
        self._meeting.start()

    def tell(self, rank: int, number: signal.Signals) -> None:
        self.ranks[rank].send_signal(number)

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self._meeting.join()
        self._listener.close()

    def _meet(self) -> None:
        """Release all ranks each time the last rank has arrived, without end."""
        came = [self._listener.accept()[0] for _ in range(self._size)]
        with contextlib.ExitStack() as stack:
            for each in came:
                stack.enter_context(each)
            with contextlib.suppress(OSError):
                while all(each.recv(1) for each in came):
                    for each in came:
                        each.sendall(b"!")
