"""A rank that hangs on a signal: `python hanging_rank.py DUMP_DIR RANK RANKS SOCKET`; its environment is a job's.

In each step it takes a batch and meets the other ranks at SOCKET, in functions named as in a training program. After
SIGUSR1 it waits for a batch that never comes, so that the other ranks wait for this rank; SIGUSR2 brings the batch."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.rank import start_library_thread
from agent.simulate.writer import CommunicatorLog, InspectorFile, SimulatedRecord

STEP_SECONDS = 0.1


class Data:
    """The source of batches, and whether it is empty."""

    def __init__(self) -> None:
        self.dry = False
        self._nothing, self._batches = os.pipe()
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "dry", True))
        signal.signal(signal.SIGUSR2, self._bring)

    def _bring(self, *_: object) -> None:
        self.dry = False
        os.write(self._batches, b"!")

    def next_batch(self) -> None:
        """Take a batch."""
        if self.dry:
            os.read(self._nothing, 1)


def all_reduce(others: socket.socket) -> None:
    """Wait for the other ranks."""
    others.sendall(b"!")
    others.recv(1)


def train(dump_dir: str, rank: int, ranks: int, meeting: str) -> None:
    """Run until killed."""
    data = Data()
    start_library_thread()
    number = int.from_bytes(os.environ["SLURM_JOB_ID"].encode(), "big") & (2**48 - 1)
    communicator = SimulatedCommunicator("world", "default_pg", number, tuple(range(ranks)), nodes=1, network=False)
    log = CommunicatorLog(communicator, rank)
    output = InspectorFile(dump_dir, os.uname().nodename, os.getpid())
    with socket.socket(socket.AF_UNIX) as others:
        others.connect(meeting)
        for step in range(10**9):
            data.next_batch()
            time.sleep(STEP_SECONDS)
            all_reduce(others)
            log.add(SimulatedRecord("AllReduce", step, 1 << 20, 500))
            output.dump([log])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
