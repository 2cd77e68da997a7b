"""The reader of PyTorch's pickles: equal to Python's on recorded dumps, and safe with everything else."""

from __future__ import annotations

import pickle
import struct
import subprocess
import tracemalloc
from typing import Any

import pytest
from flight_dumps import dump, entry, pickled, recorded
from hypothesis import given, strategies as st

from exporters.flight_recorder import pickled as module
from exporters.flight_recorder.pickled import RefusedError, read_pickle

SCENARIOS = ("gpu_error_1st", "lock_gil_1st")
OPERATIONS = b"\x80N\x88\x89KMJ\x8aGX}])(eut\x85\x86\x87qrhj."
"""All that PyTorch's writer uses for a dump, with what it uses for values that a dump might have."""
CODES = OPERATIONS + b"\x00\x01\x02"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_recorded_dumps_are_read_as_by_python(scenario: str) -> None:
    """Every recorded dump gives the value that Python's own reader gives."""
    dumps = recorded(scenario)
    assert len(dumps) == 16
    for raw in dumps.values():
        assert read_pickle(raw) == pickle.loads(raw)  # noqa: S301  # recorded, and compared with


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_dump_that_was_cut_is_incomplete(scenario: str) -> None:
    """Wherever a dump is cut, it is refused as one that has no end."""
    raw = recorded(scenario)[9]
    for length in range(len(raw)):
        assert reason(raw[:length]) == "incomplete"


def test_what_is_forgotten() -> None:
    """What stands under a key that is not wanted is not kept, at any depth."""
    value = dump([entry(frames=[{"name": "f", "line": 1}])])
    found: Any = read_pickle(pickled(value), frozenset({"frames"}))
    assert found == dump([entry()])


class Caller:
    """A value whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Have a program run."""
        return subprocess.check_call, (["false"],)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(protocol: int) -> None:
    """A pickle that names a function or a class is refused, whatever its version."""
    for value in (Caller(), [Caller()], print, st.none):
        assert reason(pickle.dumps(value, protocol)) in ("malformed", "incomplete")


def test_every_other_operation_is_refused() -> None:
    """An operation that makes no plain value is refused before what follows it is looked at."""
    others = sorted(set(range(256)) - set(OPERATIONS))
    assert {reason(b"\x80\x02" + bytes([code]) + b"os\nsystem\n.") for code in others} == {"malformed"}
    assert len(others) == 256 - 25


@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    """Any bytes give a value or a refusal."""
    assert reason(raw) in ("", "incomplete", "malformed", "too_large")


@given(st.lists(st.sampled_from(CODES), max_size=200))
def test_any_operations(codes: list[int]) -> None:
    """Any order of the known operations gives a value or a refusal; a value is finite, and as Python reads it."""
    raw = b"\x80\x02" + bytes(codes) + b"."
    if reason(raw) == "":
        found = read_pickle(raw)
        assert len(repr(found)) < 100_000
        assert "..." not in repr(found)  # which is how Python shows what holds itself


_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
_VALUES = st.recursive(
    _PLAIN | st.lists(_PLAIN).map(tuple),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=50,
)


@pytest.mark.slow
@given(_VALUES)
def test_any_value(value: Any) -> None:
    """Whatever PyTorch's writer can write is read as by Python."""
    raw = pickled(value)
    assert read_pickle(raw) == value == pickle.loads(raw)  # noqa: S301  # of our own making


def test_numbers() -> None:
    """Integers of all lengths, with their signs, and floating-point numbers."""
    raw = b"\x80\x02](K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x01\xffG" + struct.pack(">d", 1.5) + b"e."
    assert read_pickle(raw) == [255, 65535, -1, 0, -1, 1.5]


def test_values_that_occur_again() -> None:
    """A text, a number or a flat container may be used again; one that holds others, or itself, may not."""
    assert read_pickle(b"\x80\x02](X\x01\x00\x00\x00aq\x00h\x00K\x07q\x01h\x01e.") == ["a", "a", 7, 7]
    assert read_pickle(b"\x80\x02](}(X\x01\x00\x00\x00aK\x01uq\x05h\x05r\x06\x00\x00\x00j\x06\x00\x00\x00e.") == [
        {"a": 1},
        {"a": 1},
        {"a": 1},
    ]
    assert reason(b"\x80\x02](h\x00e.") == "malformed"
    nested = b"\x80\x02](](](K\x01eeq\x00"
    assert read_pickle(nested + b"e.") == [[[1]]]
    assert reason(nested + b"h\x00e.") == "malformed"
    itself = b"\x80\x02]q\x00(h\x00e."
    assert reason(itself) == "malformed"


@pytest.mark.parametrize(
    "raw",
    [b"\x80\x02.", b"\x80\x04N.", b"N\x80\x02.", b"\x80\x02NN.", b"\x80\x02(N.", b"\x80\x02N.N", b"\x80\x02e.",
     b"\x80\x02(e.", b"\x80\x02N(e.", b"\x80\x02N(u.", b"\x80\x02}(Nu.", b"\x80\x02}(NNu.", b"\x80\x02\x86.",
     b"\x80\x02N(\x85.", b"\x80\x02]\x85.", b"\x80\x02q\x00.", b"\x80\x02N(q\x00.", b"\x80\x02t."],
)  # fmt: skip
def test_operations_that_do_not_fit(raw: bytes) -> None:
    """Operations that take what is not there, of another kind, or leave more than one value, are refused."""
    assert reason(raw) == "malformed"


@pytest.mark.parametrize(
    ("bound", "at_bound", "beyond"),
    [
        ("MAX_OPERATIONS", b"\x80\x02](NNNNe.", b"\x80\x02](NNNNNe."),
        ("MAX_DEPTH", b"](" * 9 + b"e" * 9 + b".", b"](" * 10 + b"e" * 10 + b"."),
        ("MAX_TEXT_BYTES", b"X\x09\x00\x00\x00123456789.", b"X\x0a\x00\x00\x001234567890."),
        ("MAX_INTEGER_BYTES", b"\x8a\x09123456789.", b"\x8a\x0a1234567890."),
    ],
)
def test_bounds(monkeypatch: pytest.MonkeyPatch, bound: str, at_bound: bytes, beyond: bytes) -> None:
    """Each bound holds: so much is read, and not one more."""
    monkeypatch.setattr(module, bound, 9)
    if bound != "MAX_OPERATIONS":
        monkeypatch.setattr(module, "MAX_OPERATIONS", 1000)
    assert reason(at_bound) == ""
    assert reason(beyond) == "too_large"


@pytest.mark.parametrize(
    ("raw", "taken"),
    [
        (b"](K\x01e.", 80 + 32 + 9),
        (b"](J\x01\x00\x00\x00e.", 80 + 32 + 9),
        (b"](\x8a\x01\x01e.", 80 + 32 + 9),
        (b"](G\x00\x00\x00\x00\x00\x00\x00\x00e.", 80 + 32 + 9),
        (b"](X\x03\x00\x00\x00abce.", 80 + 64 + 3 + 9),
        (b"](X\x04\x00\x00\x00\xf0\x9f\x99\x82e.", 80 + 64 + 4 + 9),
        (b"}(X\x01\x00\x00\x00aNu.", 80 + 64 + 1 + 60),
        (b"NN\x86.", 80 + 2 * 9),
        (b"Nq\x00.", 60),
        (b").", 80),
    ],
)
def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, raw: bytes, taken: int) -> None:
    """What values take is counted, and no file takes one byte more than the bound."""
    monkeypatch.setattr(module, "MAX_MEMORY_BYTES", taken)
    assert reason(raw) == ""
    monkeypatch.setattr(module, "MAX_MEMORY_BYTES", taken - 1)
    assert reason(raw) == "too_large"


def test_open_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many values wait for their container, and not one more."""
    monkeypatch.setattr(module, "MAX_OPEN_VALUES", 3)
    assert reason(b"](NNe.") == ""
    assert reason(b"](NNNe.") == "too_large"


def test_items_of_what_occurs_again_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of so many items may be used again, and not one of one more."""
    monkeypatch.setattr(module, "MAX_SHARED_ITEMS", 2)
    assert read_pickle(b"](](NNeq\x00h\x00e.") == [[None, None], [None, None]]
    assert reason(b"](](NNNeq\x00h\x00e.") == "malformed"


def test_a_text_that_says_it_is_long_takes_no_memory() -> None:
    """A length that the file has not takes no room."""
    tracemalloc.start()
    try:
        assert reason(b"\x80\x02X\xff\xff\xff\xff12") == "too_large"
        assert reason(b"\x80\x02X\xff\xff\x0f\x0012") == "incomplete"
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def reason(raw: bytes) -> str:
    """Why ``raw`` is refused; empty where it is read."""
    try:
        read_pickle(raw)
    except RefusedError as refused:
        return refused.reason
    return ""
