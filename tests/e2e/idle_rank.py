"""A process that looks like a rank and only waits: `python idle_rank.py THREAD [END]`.

It has a thread called THREAD, and leaves with status 0 once there is a file END.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

POLL_SECONDS = 0.05
_PR_SET_NAME = 15


def wait(name: str, end: str) -> None:
    """Bear the name until the end."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
    while not (end and os.path.exists(end)):
        time.sleep(POLL_SECONDS)


def main(name: str, end: str = "") -> None:
    """Run until END is there."""
    threading.Thread(target=wait, args=(name, end)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
