"""A rank under torchrun: waits for the file GO, then ends as the argument for its job says; only rank 1 misbehaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record


class TheUsersOwnWord(Exception):  # noqa: N818  # as users name theirs
    """An exception whose name may hold a secret."""


def misbehave(how: str) -> None:
    """End, hang or return as told."""
    if how in ("key", "again"):
        raise KeyError("a secret")
    if how == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if how == "own":
        raise TheUsersOwnWord("a secret")
    if how == "early":
        sys.exit(0)
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])


@record
def main() -> None:
    """Wait, then end; in a restarted run wait for good."""
    go, how = Path(sys.argv[1]), sys.argv[2]
    while not go.exists() or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        time.sleep(0.1)
    if os.environ["RANK"] == "1":
        misbehave(how)
    time.sleep(0.0 if how == "end" else 600.0)


main()
