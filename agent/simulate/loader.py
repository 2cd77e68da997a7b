"""Data-loader workers: forked from a rank, they inherit its environment and its open files, and outlive it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

POLL_SECONDS = 0.1
STAY_SECONDS = 60.0
"""How long a worker stays at most after its rank is gone."""


def fork_data_loaders(count: int, end_marker: Path, launcher: int | None) -> None:
    """Fork ``count`` workers; call before starting threads.

    They leave when ``end_marker`` exists, when the process ``launcher`` is gone (None: none to watch), or
    ``STAY_SECONDS`` after their parent is.
    """
    parent = os.getpid()
    for _ in range(count):
        if os.fork() == 0:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                _be_quiet()
                _stay(parent, end_marker, launcher)
            finally:  # never go on as a second rank, whatever happened
                os._exit(0)


def _be_quiet() -> None:
    """Close standard error: else a reader of the launcher's would wait for this worker's end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _stay(parent: int, end_marker: Path, launcher: int | None) -> None:
    orphan_since: float | None = None
    while not end_marker.exists() and (launcher is None or _alive(launcher)):
        now = time.monotonic()
        if orphan_since is None and os.getppid() != parent:
            orphan_since = now
        if orphan_since is not None and now - orphan_since > STAY_SECONDS:
            return
        time.sleep(POLL_SECONDS)


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie launcher is dead
