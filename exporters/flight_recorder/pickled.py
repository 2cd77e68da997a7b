"""Reads the pickles that PyTorch's C++ code writes: plain values alone. Runs in a helper with bounded memory.

A pickle is a program, and a user wrote the file. Without a name (`find_class`) or a value of another file there is
nothing that it could import, call or build: the operations that do so are refused with the names that they need.
"""

from __future__ import annotations

import io
import pickle
from typing import Literal, NoReturn

_FAILURES = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""Errors of Python's unpickler if the operations make no value."""

Reason = Literal["incomplete", "malformed", "too_large"]


class RefusedError(ValueError):
    """The file is refused. ``reason``: incomplete, malformed, or too large."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every name."""

    def find_class(self, _module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(name)

    def persistent_load(self, _pid: object) -> NoReturn:
        raise pickle.UnpicklingError("the value is in another file")


def read_pickle(raw: bytes) -> object:
    """Return the value in ``raw``. Raise RefusedError for a file that is not allowed, MemoryError for a bomb."""
    stream = io.BytesIO(raw)
    try:
        value = _PlainUnpickler(stream).load()
    except _FAILURES as error:
        cut = isinstance(error, EOFError) or "truncated" in str(error)
        raise RefusedError("incomplete" if cut else "malformed", str(error)[:64]) from None
    if stream.tell() != len(raw):
        raise RefusedError("malformed", "the file has bytes after the value")
    return value
