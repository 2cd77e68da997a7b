"""The reader of PyTorch's pickles equals Python's on recorded dumps, and refuses everything else safely."""

from __future__ import annotations

import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from flight_dumps import recorded
from hypothesis import strategies as st

from exporters.flight_recorder import pickled as module
from exporters.flight_recorder.dump import read_dump
from exporters.flight_recorder.pickled import RefusedError, read_pickle

SCENARIOS = ("gpu_error_1st", "lock_gil_1st")
ALLOWED = b"\x80N\x88\x89KMJ\x8aGX}])(eut\x85\x86\x87qrhj."
"""The opcodes that PyTorch's writer uses for a dump, and for values that a dump might have."""


def test_recorded_dumps_are_read_as_by_python() -> None:
    """Every recorded dump gives the same value as Python's own reader."""
    dumps = [raw for scenario in SCENARIOS for raw in recorded(scenario).values()]
    assert len(dumps) == 32
    for raw in dumps:
        assert read_pickle(raw) == pickle.loads(raw)  # noqa: S301  # recorded, and compared with


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_dump_that_was_cut_is_incomplete(scenario: str) -> None:
    """A dump that is cut at any byte is incomplete."""
    raw = recorded(scenario)[9]
    assert {reason(raw[:length]) for length in range(len(raw))} == {"incomplete"}
    assert reason(raw) == ""
    assert reason(raw + b"N") == "malformed"


class Caller:
    """A value that pickles to a function call."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a call that starts a program."""
        return subprocess.check_call, (["false"],)


def test_nothing_is_called() -> None:
    """A pickle that names a function or a class is refused, in each version of the format."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for value in (Caller(), [Caller()], print, st.none, {1, 2}, b"bytes"):
            assert reason(pickle.dumps(value, protocol)) == "malformed"


def test_every_other_operation_is_refused() -> None:
    """All opcodes that are not in ALLOWED are refused before their argument is read."""
    names = {one.code.encode("latin-1"): one.name for one in pickletools.opcodes}
    refused = {name for code, name in names.items() if code not in ALLOWED}
    calling = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"}
    assert refused > calling | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "PUT", "MEMOIZE"}
    assert len(refused) == len(names) - len(ALLOWED)
    for code in set(range(256)) - set(ALLOWED):
        for before in (b"\x80\x02", b"\x80\x02N", b"\x80\x02](", b"\x80\x02)"):
            assert reason(before + bytes([code]) + b"os\nsystem\n.") == "malformed"


def test_names_are_refused_by_the_reader_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even without the first check, the reader resolves no name and no external value."""
    monkeypatch.setattr(module, "check", lambda _raw: None)
    for raw in (pickle.dumps(print), pickle.dumps(Caller()), b"cos\nsystem\n.", b"Pa\n.", b"NQ.", b"\x82\x01."):
        assert reason(raw) == "malformed"


def test_operations_that_do_not_fit() -> None:
    """An operation on a missing stack element, or on one of the wrong type, is refused."""
    for raw in (b".", b"e.", b"(e.", b"N(Ne.", b"N(Nu.", b"}(Nu.", b"}(]Nu.", b"\x86.", b"q\x00.", b"t.", b"h\x00.",
                b"N.N", b"\x80\x09N.", b"X\x01\x00\x00\x00\xff."):  # fmt: skip
        assert reason(raw) == "malformed", raw


def test_bombs_take_no_memory() -> None:
    """Pickles with many memo entries, lengths beyond the file or deep nesting need less than 2 MB of memory."""
    many = b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", number) for number in range(5000))
    assert reason(many + b".") == ""
    bombs = {
        b"\x80\x02Nr\xff\xff\xff\xff.": "malformed",
        b"\x80\x02Nr\x00\x00\x00\x80.": "malformed",
        b"\x80\x02Nq\x01.": "malformed",
        many + b"r" + struct.pack("<I", 5001) + b".": "malformed",
        b"\x80\x02X\xff\xff\xff\xff12": "incomplete",
        b"\x80\x02X\xff\xff\x0f\x0012": "incomplete",
        b"\x80\x02\x8a\xff12": "incomplete",
        b"](" * 2000 + b".": "malformed",
    }
    tracemalloc.start()
    try:
        assert {raw: reason(raw) for raw in bombs} == bombs
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert reason(b"](" * 50_000 + b"e" * 50_000 + b".") == ""


def test_values_that_hold_themselves() -> None:
    """A value that contains itself is read, and is refused as a dump."""
    itself: Any = read_pickle(b"]q\x00(h\x00e.")
    assert itself[0] is itself
    with pytest.raises(RefusedError):
        read_dump(b"}(X\x07\x00\x00\x00entries]q\x00(h\x00eu.", 0)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle at the limit of operations or memory is read; a pickle above the limit is refused."""
    monkeypatch.setattr(module, "MAX_OPERATIONS", 9)
    assert reason(b"\x80\x02](NNNNe.") == ""
    assert reason(b"\x80\x02](NNNNNe.") == "too_large"
    monkeypatch.setattr(module, "MAX_OPERATIONS", 1000)
    for raw, taken in {
        b"](K\x01e.": 110 + 16 + 62,
        b"}(X\x01\x00\x00\x00aNu.": 110 + 16 + 30 + sys.getsizeof("a") + 30,
        b"NN\x86.": 30 + 30 + 110,
        b"Nq\x00h\x00\x86.": 30 + 16 + 30 + 110,
        b").": 30,
    }.items():
        for room, expected in ((taken, ""), (taken - 1, "too_large")):
            monkeypatch.setattr(module, "MAX_MEMORY_BYTES", room)
            assert reason(raw) == expected, raw


def reason(raw: bytes) -> str:
    """Return why ``raw`` is refused; empty if it is read."""
    try:
        read_pickle(raw)
    except RefusedError as refused:
        return refused.reason
    return ""
