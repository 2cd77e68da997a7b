"""A process that looks like a rank and works: `python held_rank.py WORK [FILE]`; its environment is a rank's.

WORK: `wait`; `spin`: compute in Python; `touch`: read pages of the mapped FILE; `read`: read FILE again and again,
without the page cache. In each case a child computes a little, as a data loader does. It writes one Inspector record to
NCCL_INSPECTOR_DUMP_DIR."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.writer import CommunicatorLog, InspectorFile, SimulatedRecord

_PR_SET_NAME = 15
BURST_SECONDS = 0.02
PAUSE_SECONDS = 0.1


def bear_the_name() -> None:
    """Run a thread with the name of an NCCL thread."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"NCCL RAS")
    threading.Event().wait()


def write_record(dump_dir: str) -> InspectorFile:
    """Write a record, which names the rank even if the process' environment is unreadable; return the open file."""
    communicator = SimulatedCommunicator("world", "default_pg", os.getpid(), (0, 1), nodes=1, network=False)
    log, file = CommunicatorLog(communicator, 0), InspectorFile(dump_dir, os.uname().nodename, os.getpid())
    log.add(SimulatedRecord("AllReduce", 0, 1 << 20, 400))
    file.dump([log])
    return file


def load() -> None:
    """Act as the data loader while the rank exists."""
    rank = os.getppid()
    while os.getppid() == rank:
        until = time.thread_time() + BURST_SECONDS
        while time.thread_time() < until:
            pass
        time.sleep(PAUSE_SECONDS)


def spin() -> None:
    """Compute."""
    number = 0
    while True:
        number += 1


def touch(path: Path) -> None:
    """Read random pages of a mapped file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        while True:
            pages[random.randrange(len(pages))]  # noqa: S311  # no secret


def read(path: Path) -> None:
    """Read a file again and again, without end."""
    with path.open("rb", buffering=0) as file:
        while True:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(1 << 16):
                pass


def main(work: str, path: str = "") -> None:
    """Work until killed."""
    if os.fork() == 0:
        load()
        os._exit(0)
    records = write_record(os.environ["NCCL_INSPECTOR_DUMP_DIR"])
    threading.Thread(target=bear_the_name, daemon=True).start()
    if work == "spin":
        spin()
    elif work == "touch":
        touch(Path(path))
    elif work == "read":
        read(Path(path))
    signal.pause()
    records.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
