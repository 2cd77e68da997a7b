"""A rank that really works: `python working_rank.py DUMP_DIR RANK RANKS SOCKET DATA BURNS`; its environment is a job's.

Each step it takes a batch of its data loader (a child), touches memory that a file backs, computes, and meets the other
ranks at SOCKET; how long it waited there is the time of its collective, written as the Inspector plugin writes it.
``DATA`` is a file that only this rank reads, ``BURNS`` how many hashes a step takes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.rank import start_library_thread
from agent.simulate.records import SimulatedRecord
from agent.simulate.writer import CommunicatorLog, InspectorFile

STEP_SECONDS = 0.2
"""What a step takes where nothing holds it up, nearly all of it asleep, as a process is while its GPU computes."""
FLOOR_US = 400
BATCH_BYTES = 16 * 1024
TOUCHED_PAGES = 300
"""In each step, of those of its file."""
BLOCK = hashlib.sha256(b"work").digest() * 128
LOADER_SHARE = 0.5
"""Of a rank's hashes, what its data loader has to do for a batch."""
MORE_WORK = 16
"""So many times as much has a rank to compute from SIGUSR1 on."""


def burn(hashes: int) -> None:
    """Compute."""
    for _ in range(hashes):
        hashlib.sha256(BLOCK)


def anywhere(places: int) -> int:
    """A place of so many, any."""
    return random.randrange(places)  # noqa: S311  # no secret


def load(data: Path, pipe: int, burns: int) -> None:
    """Be the data loader: for ever read a batch, past the page cache, and work on it; the pipe holds it back."""
    buffer = mmap.mmap(-1, BATCH_BYTES)
    file = os.open(data, os.O_RDONLY | os.O_DIRECT)
    blocks = os.fstat(file).st_size // BATCH_BYTES
    while True:
        os.preadv(file, [buffer], anywhere(blocks) * BATCH_BYTES)
        burn(int(burns * LOADER_SHARE))
        os.write(pipe, buffer[:])


def read_batch(pipe: int) -> None:
    """Take a whole batch."""
    left = BATCH_BYTES
    while left:
        left -= len(os.read(pipe, left))


def main(dump_dir: str, rank: int, ranks: int, meeting: str, data: Path, burns: int) -> None:
    """Run until killed."""
    batches, pipe = os.pipe()
    if os.fork() == 0:
        os.close(batches)
        load(data, pipe, burns)
    os.close(pipe)
    work = [burns]
    signal.signal(signal.SIGUSR1, lambda *_: work.__setitem__(0, burns * MORE_WORK))
    start_library_thread("pt_nccl_watchdg")
    number = int.from_bytes(os.environ["SLURM_JOB_ID"].encode(), "big") & (2**48 - 1)
    communicator = SimulatedCommunicator("world", "default_pg", number, tuple(range(ranks)), nodes=1, network=False)
    log = CommunicatorLog(communicator, rank)
    output = InspectorFile(dump_dir, os.uname().nodename, os.getpid())
    with data.open("rb") as file, socket.socket(socket.AF_UNIX) as others:
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        pages.madvise(mmap.MADV_RANDOM)
        others.connect(meeting)
        for step in range(10**9):
            read_batch(batches)
            for _ in range(TOUCHED_PAGES):
                pages[anywhere(len(pages))]
            burn(work[0])
            time.sleep(STEP_SECONDS)
            arrived = time.monotonic()
            others.sendall(b"!")
            others.recv(1)
            waited_us = int(1e6 * (time.monotonic() - arrived))
            log.add(SimulatedRecord("AllReduce", step, 1 << 20, FLOOR_US + waited_us))
            output.dump([log])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]), int(sys.argv[6]))
