"""Unexpected input for readers of external text and of saved values."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from client_metrics import encode
from hypothesis import strategies as st

from agent.core.metrics import Metric

T = TypeVar("T")

MEGABYTE = 1_000_000
NESTING = 2_000
_WORD = re.compile(rb"[A-Za-z0-9_.-]+")
_DIGIT = re.compile(rb"[0-9a-f]+")
_EDGES = (0, -1, 2**31, 2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_NUMBERS = (*_EDGES, 2**64, 2**70, 10**20 - 1, 10**400)
_DIGITS = (*(b"%d" % number for number in _NUMBERS), b"9" * 5_000, b"0x" + b"f" * 4_000)
_WORDS = (
    *(b"1e999", b"nan", b"inf", b"1.5", b"1_0", b"\xd9\xa3", b"\xc2\xb2"),
    *(b"", b"x", b" ", b"\0", b"\n", b"\\n", b"\r", b"\x1c", b"\xff", b"\xed\xa0\x80", b"x" * MEGABYTE),
    *(b"null", b"true", b"{}", b"[]", b'"x"', b'""', b"[" * NESTING, b"[" * NESTING + b"]" * NESTING),
    b'{"":' * NESTING + b"0" + b"}" * NESTING,
)
_REPLACEMENTS = st.one_of(st.sampled_from(_DIGITS), st.sampled_from(_WORDS))


class _Spot(NamedTuple):
    """A word's position in a text."""

    body: bytes
    begin: int
    end: int


def _spots(bodies: Iterable[bytes]) -> list[_Spot]:
    """Return the first word of each kind (word and neighbours), so that all kinds are drawn equally often."""
    spots: dict[tuple[bytes, ...], _Spot] = {}
    for body in bodies:
        words = list(_WORD.finditer(body))
        shapes = [b"", *(_DIGIT.sub(b"0", word[0]) for word in words), b""]
        for number, word in enumerate(words):
            spots.setdefault(tuple(shapes[number : number + 3]), _Spot(body, word.start(), word.end()))
    return list(spots.values())


def damaged(*bodies: bytes) -> st.SearchStrategy[bytes]:
    """Draw one of these texts with a replaced word, an early end, a missing or repeated line, or odd bytes."""
    return _damaged(bodies, _spots(bodies))


@st.composite
def _damaged(draw: st.DrawFn, bodies: Sequence[bytes], spots: Sequence[_Spot]) -> bytes:
    if spots and draw(st.integers(0, 3)):
        body, begin, end = draw(st.sampled_from(spots))
        original = body[begin:end] if draw(st.integers(0, 5)) == 0 else b""
        body = body[:begin] + original + draw(_REPLACEMENTS) + body[end:]
    else:
        body = draw(st.sampled_from(bodies))
    for how in draw(st.lists(st.sampled_from(("cut", "line", "byte")), max_size=2)):
        at = draw(st.integers(0, len(body)))
        if how == "cut":
            body = body[:at]
        elif how == "byte":
            body = body[:at] + draw(st.binary(max_size=4)) + body[at + 1 :]
        else:
            lines = body.splitlines(keepends=True) or [b""]
            number = at % len(lines)
            body = b"".join([*lines[:number], lines[number] * draw(st.sampled_from((0, 2, 40))), *lines[number + 1 :]])
    return body


_ALIKE: dict[type, st.SearchStrategy[Any]] = {
    int: st.sampled_from([*_EDGES, -(2**63)]),
    float: st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0.0]),
    str: st.sampled_from(["", "x", "x" * 10_000, "x" * MEGABYTE, "\n", "\0", "\u202e", "0"]),
}
_OTHER = st.one_of(
    *_ALIKE.values(),
    st.sampled_from([None, True, False, [], {}, b"\xff", {"x": 1}, [1]]),
    st.just(json.loads("[" * 400 + "]" * 400)),
)
_KEYS = st.sampled_from(["", "x", "x" * 10_000, -1, 2**62, 2**64 - 1])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of plain values, containers included."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, own in items:
        yield from places(own, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another value at one path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@st.composite
def reshaped(draw: st.DrawFn, plain: Any) -> Any:
    """Draw plain values with up to three keys or values replaced, mostly by values of the same type."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(plain))))
        here = plain
        for step in path:
            here = here[step]
        alike = _ALIKE.get(type(here))
        if alike is not None and draw(st.integers(0, 3)):
            plain = changed(plain, path, draw(alike))
        elif isinstance(here, dict) and here and draw(st.booleans()):
            plain = changed(plain, path, {**here, draw(_KEYS): here[draw(st.sampled_from(list(here)))]})
        else:
            plain = changed(plain, path, draw(_OTHER))
    return plain


def plain(section: bytes | None) -> Any:
    """Return the plain values of a checkpoint section."""
    assert section is not None
    return msgspec.msgpack.decode(section, strict=False)


def shown(families: Iterable[Metric]) -> bytes:
    """Return the body of a scrape of these families."""
    return encode(families).body


class AtOnce:
    """Stands in for a thread: runs the work at once, in the caller's thread."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    async def call(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()
