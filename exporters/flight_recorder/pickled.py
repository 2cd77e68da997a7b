"""Reads the pickles that PyTorch's C++ code writes: plain values alone; nothing is imported, nothing is called. Pure.

Python's own reader of pickles runs what the file says, and the file is a user's. Here are only the operations of
PyTorch's writer that make dictionaries, lists, tuples, numbers, texts, True, False and None; every other is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal

MAX_OPERATIONS = 8_000_000
"""Of one file: for the time that it may take, 5 s. 20,000 entries with their stacks have 2.5 million."""
MAX_MEMORY_BYTES = 80 * 1024 * 1024
"""That the values of one file may take, as far as it is counted: 20,000 entries take 50 MB, beside the file itself."""
MAX_OPEN_VALUES = 250_000
"""Whose container is not complete yet: they are held two or three times while it is filled."""
MAX_DEPTH = 32
"""Of containers within each other; a dump has 5."""
MAX_TEXT_BYTES = 1024 * 1024
"""Of one text: the ranks of a group of 100,000 take 700 KB."""
MAX_SHARED_ITEMS = 16
"""Of a container that occurs several times: a frame of a stack has 3. So a value holds at most so many times what the
file has operations, and nothing holds itself."""
MAX_INTEGER_BYTES = 8

Reason = Literal["incomplete", "malformed", "too_large"]
_CONTAINERS = (dict, list, tuple)
_CONTAINER_BYTES, _NUMBER_BYTES, _TEXT_BYTES, _WIDE_BYTES, _ITEM_BYTES, _PAIR_BYTES = 80, 32, 64, 4, 9, 60
"""What values take in CPython at most: items and pairs in containers, characters of texts that are not all ASCII."""
_NOT_SHARED = object()
"""Noted for a container that may not be used again: PyTorch notes the whole value, too, at the end of the file."""


class RefusedError(ValueError):
    """A file that is not read. ``reason``: it has no end, it is something else, or it is beyond a bound."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason: Reason = reason


def read_pickle(raw: bytes, forget: frozenset[str] = frozenset()) -> object:
    """The value that ``raw`` holds; RefusedError.

    Of dictionaries the keys in ``forget`` are left out, so that what they hold takes no memory for long.
    """
    return _Reader(raw, forget).read()


class _Reader:
    """One file while it is read: where, the values so far, and those that may be used again by their number."""

    def __init__(self, raw: bytes, forget: frozenset[str]) -> None:
        self._raw = raw
        self._at = 0
        self._forget = forget
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._noted: dict[int, object] = {}
        self._closed: dict[int, object] = {}
        self._room = MAX_MEMORY_BYTES

    def read(self) -> object:
        """Carry out all operations; what they leave is the value."""
        raw, length = self._raw, len(self._raw)
        for _ in range(MAX_OPERATIONS):
            if self._at >= length:
                raise RefusedError("incomplete", "the file ends before its value does")
            code = raw[self._at]
            self._at += 1
            if code == _STOP:
                return self._result()
            operation = _OPERATIONS[code]
            if operation is None:
                raise _malformed(f"operation {code:#x} is none of a dump's")
            operation(self)
            if self._room < 0 or len(self._stack) > MAX_OPEN_VALUES:
                raise RefusedError("too_large", "values that take too much memory")
        raise RefusedError("too_large", f"more than {MAX_OPERATIONS} operations")

    def _result(self) -> object:
        if self._at != len(self._raw) or len(self._stack) != 1 or self._marks:
            raise _malformed("more than one value")
        return self._stack[0]

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _bytes(self, count: int) -> bytes:
        piece = self._raw[self._at : self._at + count]
        if len(piece) < count:
            raise RefusedError("incomplete", "the file ends within a value")
        self._at += count
        return piece

    def _number(self, count: int) -> int:
        return int.from_bytes(self._bytes(count), "little")

    # -- values ----------------------------------------------------------------------------------------------------

    def protocol(self) -> None:
        """The version of the format, at the beginning."""
        if self._number(1) != 2 or self._at != 2:
            raise _malformed("a format that PyTorch does not write")

    def nothing(self) -> None:
        """None."""
        self._stack.append(None)

    def true(self) -> None:
        """True."""
        self._stack.append(True)

    def false(self) -> None:
        """False."""
        self._stack.append(False)

    def unsigned(self, count: int) -> None:
        """An integer of so many bytes."""
        self._room -= _NUMBER_BYTES
        self._stack.append(self._number(count))

    def signed(self, count: int) -> None:
        """Likewise, which may be negative."""
        self._room -= _NUMBER_BYTES
        self._stack.append(int.from_bytes(self._bytes(count), "little", signed=True))

    def long(self) -> None:
        """An integer whose length comes first."""
        count = self._number(1)
        if count > MAX_INTEGER_BYTES:
            raise RefusedError("too_large", f"an integer of {count} bytes")
        self.signed(count)

    def floating(self) -> None:
        """A floating-point number."""
        self._room -= _NUMBER_BYTES
        self._stack.append(struct.unpack(">d", self._bytes(8))[0])

    def text(self) -> None:
        """A text in UTF-8."""
        count = self._number(4)
        if count > MAX_TEXT_BYTES:
            raise RefusedError("too_large", f"a text of {count} bytes")
        found = self._bytes(count).decode("utf-8", "replace")
        self._room -= _TEXT_BYTES + len(found) * (1 if found.isascii() else _WIDE_BYTES)
        self._stack.append(found)

    # -- containers ------------------------------------------------------------------------------------------------

    def empty(self, kind: type[dict[object, object]] | type[list[object]] | type[tuple[object, ...]]) -> None:
        """An empty container."""
        self._room -= _CONTAINER_BYTES
        self._stack.append(kind())

    def mark(self) -> None:
        """The items of a container follow."""
        if len(self._marks) >= MAX_DEPTH:
            raise RefusedError("too_large", f"more than {MAX_DEPTH} containers within each other")
        self._marks.append(len(self._stack))

    def items(self) -> list[object]:
        """Those since the last mark, taken away."""
        if not self._marks:
            raise _malformed("items of nothing")
        mark = self._marks.pop()
        found = self._stack[mark:]
        del self._stack[mark:]
        return found

    def fill_list(self) -> None:
        """Items for the list before the mark."""
        found = self.items()
        target = self._target()
        if not isinstance(target, list):
            raise _malformed("items of no list")
        self._room -= _ITEM_BYTES * len(found)
        target.extend(found)

    def fill_dictionary(self) -> None:
        """Keys and values for the dictionary before the mark."""
        found = self.items()
        target = self._target()
        if not isinstance(target, dict) or len(found) % 2:
            raise _malformed("values of no dictionary")
        self._room -= _PAIR_BYTES * len(found) // 2
        for at in range(0, len(found), 2):
            key = found[at]
            if not isinstance(key, str):
                raise _malformed("a key that is no text")
            if key not in self._forget:
                target[key] = found[at + 1]

    def _target(self) -> object:
        """The container that is to be filled, which nothing else holds yet."""
        if len(self._stack) <= self._floor() or id(self._stack[-1]) in self._closed:
            raise _malformed("items of nothing")
        return self._stack[-1]

    def make_tuple(self, count: int | None) -> None:
        """So many items, or those since the mark, as a tuple: of plain values, as all in a dump are."""
        if count is None:
            found = self.items()
        elif len(self._stack) - count < self._floor():
            raise _malformed("a tuple of nothing")
        else:
            found = self._stack[-count:]
            del self._stack[-count:]
        if any(isinstance(each, _CONTAINERS) for each in found):
            raise _malformed("a tuple of containers")
        self._room -= _CONTAINER_BYTES + _ITEM_BYTES * len(found)
        self._stack.append(tuple(found))

    def _floor(self) -> int:
        """How much of the stack belongs to containers around the one that is being made."""
        return self._marks[-1] if self._marks else 0

    # -- values that occur several times ---------------------------------------------------------------------------

    def note(self, count: int) -> None:
        """Note the last value under a number."""
        number = self._number(count)
        if len(self._stack) <= self._floor():
            raise _malformed("nothing to note")
        value = self._stack[-1]
        if isinstance(value, _CONTAINERS):
            self._closed[id(value)] = value  # kept: a number of one that is gone would be another's
            inner = value.values() if isinstance(value, dict) else value
            if len(value) > MAX_SHARED_ITEMS or any(isinstance(each, _CONTAINERS) for each in inner):
                value = _NOT_SHARED
        self._room -= _PAIR_BYTES  # of the table of noted values, and of closed ones
        self._noted[number] = value

    def again(self, count: int) -> None:
        """A value that was noted."""
        value = self._noted.get(self._number(count), _NOT_SHARED)
        if value is _NOT_SHARED:
            raise _malformed("a value that was not noted")
        self._stack.append(value)


def _malformed(text: str) -> RefusedError:
    return RefusedError("malformed", text)


_STOP = ord(".")
_BY_CODE: dict[int, Callable[[_Reader], None]] = {
    0x80: _Reader.protocol,
    ord("N"): _Reader.nothing,
    0x88: _Reader.true,
    0x89: _Reader.false,
    ord("K"): lambda reader: reader.unsigned(1),
    ord("M"): lambda reader: reader.unsigned(2),
    ord("J"): lambda reader: reader.signed(4),
    0x8A: _Reader.long,
    ord("G"): _Reader.floating,
    ord("X"): _Reader.text,
    ord("}"): lambda reader: reader.empty(dict),
    ord("]"): lambda reader: reader.empty(list),
    ord(")"): lambda reader: reader.empty(tuple),
    ord("("): _Reader.mark,
    ord("e"): _Reader.fill_list,
    ord("u"): _Reader.fill_dictionary,
    ord("t"): lambda reader: reader.make_tuple(None),
    0x85: lambda reader: reader.make_tuple(1),
    0x86: lambda reader: reader.make_tuple(2),
    0x87: lambda reader: reader.make_tuple(3),
    ord("q"): lambda reader: reader.note(1),
    ord("r"): lambda reader: reader.note(4),
    ord("h"): lambda reader: reader.again(1),
    ord("j"): lambda reader: reader.again(4),
}
_OPERATIONS = tuple(_BY_CODE.get(code) for code in range(256))
