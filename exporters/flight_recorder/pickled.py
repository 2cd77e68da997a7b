"""Reads pickles that PyTorch's C++ code writes, and only plain values. Pure.

A pickle is a program, and a user wrote the file. So this module first reads all operations without running them. It
allows only the operations of PyTorch's writer that make dictionaries, lists, tuples, numbers, texts, True, False and
None. No allowed operation imports, calls, builds or extends. Before the values exist, this module adds up the memory
that they need, and refuses files above a limit. The memory limit of the process covers the rest.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import sys
from collections.abc import Callable
from typing import IO, Any, Literal, NoReturn

MAX_OPERATIONS = 8_000_000  # This many operations take 7 s. 20,000 entries with their stacks have 2.5 million.
MAX_MEMORY_BYTES = 112 * 1024 * 1024
"""Limit for the values of one file. 20,000 entries with their stacks count as 80 MB."""
_COSTS = {
    **dict.fromkeys(["EMPTY_DICT", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"], 110),
    **dict.fromkeys(["BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"], 62),
    **dict.fromkeys(["BINUNICODE", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE", "BINGET", "LONG_BINGET"], 30),
    **dict.fromkeys(["MARK", "BINPUT", "LONG_BINPUT"], 16),
    **dict.fromkeys(["PROTO", "APPENDS", "SETITEMS", "STOP"], 0),
}
"""Bytes of memory per allowed operation, with the value's slot in a container. A text's length is added."""

_Reader = Callable[[IO[bytes]], Any]
_ALLOWED: dict[bytes, tuple[str, _Reader | None, int]] = {
    opcode.code.encode("latin-1"): (opcode.name, None if opcode.arg is None else opcode.arg.reader, _COSTS[opcode.name])
    for opcode in pickletools.opcodes
    if opcode.name in _COSTS
}

_FAILURES = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError)
"""Errors of Python's unpickler if the order of operations makes no value."""

Reason = Literal["incomplete", "malformed", "too_large"]


class RefusedError(ValueError):
    """The file is refused. ``reason``: incomplete, malformed, or too large."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


class _PlainUnpickler(pickle.Unpickler):
    """Also refuses every import, in case _COSTS has an operation that imports by mistake."""

    def find_class(self, _module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(name)

    def persistent_load(self, _pid: object) -> NoReturn:
        raise pickle.UnpicklingError("the value is in another file")


def read_pickle(raw: bytes) -> object:
    """Return the value in ``raw``; raise RefusedError if it is incomplete or too large, or has a forbidden opcode."""
    check(raw)
    try:
        return _PlainUnpickler(io.BytesIO(raw)).load()
    except _FAILURES as error:
        raise RefusedError("malformed", str(error)[:64]) from None


def check(raw: bytes) -> None:
    """Read all operations without running any. Raise RefusedError if one is not allowed or a limit is exceeded."""
    stream, room, puts = io.BytesIO(raw), MAX_MEMORY_BYTES, 0
    for _ in range(MAX_OPERATIONS):
        name, argument, cost = _next(stream)
        room -= cost
        if name == "BINUNICODE":
            room -= sys.getsizeof(argument)
        elif name.endswith("BINPUT"):
            if argument > puts:  # the unpickler's table grows to the highest number; PyTorch counts from 0
                raise RefusedError("malformed", "a memo number is too high")
            puts += 1
        elif name == "STOP":
            if stream.tell() != len(raw):
                raise RefusedError("malformed", "the file has bytes after the value")
            return
        if room < 0:
            raise RefusedError("too_large", "the values take too much memory")
    raise RefusedError("too_large", f"more than {MAX_OPERATIONS} operations")


def _next(stream: IO[bytes]) -> tuple[str, Any, int]:
    """Return the next operation's name, argument and cost."""
    code = stream.read(1)
    if not code:
        raise RefusedError("incomplete", "the file ends before its value does")
    if code not in _ALLOWED:
        raise RefusedError("malformed", f"operation {code!r} is not one of a dump")
    name, reader, cost = _ALLOWED[code]
    try:
        return name, reader and reader(stream), cost
    except UnicodeDecodeError:
        raise RefusedError("malformed", "a text is not UTF-8") from None
    except ValueError:
        raise RefusedError("incomplete", "the file ends within a value") from None
