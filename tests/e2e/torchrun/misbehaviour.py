"""The ways in which ranks end in tests."""

from __future__ import annotations

import os
import signal
import sys

import torch


class TheUsersOwnWord(Exception):  # noqa: N818  # as users name theirs
    """An exception whose name can hold a secret."""


def misbehave(how: str) -> None:
    """End, hang or return as the argument says."""
    if how in ("key", "again"):
        raise KeyError("a secret")
    if how == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if how == "own":
        raise TheUsersOwnWord("a secret")
    if how == "early":
        sys.exit(0)
    hoard = []
    while how == "grow":
        hoard.append(b"x" * (1 << 24))
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
