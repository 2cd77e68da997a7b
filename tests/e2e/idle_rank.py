"""A process that looks like a rank and only waits: `python idle_rank.py THREAD [END [STATUS]]`.

It has a thread called THREAD, and exits with status 0 once the file END exists. With STATUS it exits with status STATUS
instead, and also at SIGTERM."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.05
_PR_SET_NAME = 15


def wait(name: str, end: str, status: str) -> None:
    """Name the thread, and wait until the end."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
    while not (end and os.path.exists(end)):
        time.sleep(POLL_SECONDS)
    if status:
        os._exit(int(status))


def main(name: str, end: str = "", status: str = "") -> None:
    """Run until END exists."""
    if status:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(int(status)))
    threading.Thread(target=wait, args=(name, end, status)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
