"""The reader of PyTorch's pickles: equal to Python's on recorded dumps, and safe with everything else."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from typing import Any

import pytest
from flight_dumps import pickled, recorded
from hypothesis import given, strategies as st

from exporters.flight_recorder.dump import RefusedError, read_dump, read_pickle

SCENARIOS = ("gpu_error_1st", "lock_gil_1st")


def test_recorded_dumps_are_read_as_by_python() -> None:
    """Every recorded dump gives the value that Python's own reader gives."""
    dumps = [raw for scenario in SCENARIOS for raw in recorded(scenario).values()]
    assert len(dumps) == 32
    for raw in dumps:
        assert read_pickle(raw) == pickle.loads(raw)  # noqa: S301  # recorded, and compared with


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_dump_that_was_cut_is_incomplete(scenario: str) -> None:
    """A dump that is cut at any byte has no end."""
    raw = recorded(scenario)[9]
    assert {reason(raw[:length]) for length in range(len(raw))} == {"incomplete"}
    assert reason(raw) == ""
    assert reason(raw + b"N") == "malformed"


class Caller:
    """A value whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Have a program run."""
        return subprocess.check_call, (["false"],)


def test_nothing_is_called() -> None:
    """A pickle that names a function or a class is refused in each version of the format."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        for value in (Caller(), [Caller()], print, st.none, range(3)):
            assert reason(pickle.dumps(value, protocol)) == "malformed"


def test_every_operation_that_needs_a_name_is_refused() -> None:
    """Names, extensions, values of other files, and what builds on them."""
    for raw in (b"cos\nsystem\n.", b"Pa\n.", b"NQ.", b"\x82\x01.", b"\x8c\x02os\x8c\x06system\x93.", b"(ios\nsystem\n.",
                b"N)R.", b"(No.", b"N)\x81.", b"N)}\x92.", b"}}b.", b"]}X\x01\x00\x00\x00aNsb.", b"\x97."):  # fmt: skip
        assert reason(b"\x80\x02" + raw) == "malformed", raw


@given(st.binary(max_size=200).filter(lambda raw: b"r" not in raw))  # it notes a value under any number: see the bombs
def test_any_bytes(raw: bytes) -> None:
    """Any bytes give a value or a refusal."""
    assert reason(raw) in ("", "incomplete", "malformed", "too_large")


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
    assert read_pickle(pickled(value)) == value


def test_numbers_and_values_that_occur_again() -> None:
    """Integers of all lengths keep their signs, and noted values occur again."""
    raw = b"\x80\x02](K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x01\xffG" + struct.pack(">d", 1.5) + b"e."
    assert read_pickle(raw) == [255, 65535, -1, 0, -1, 1.5]
    raw = b"\x80\x02](X\x01\x00\x00\x00aq\x00h\x00}(h\x00K\x01ur\x01\x00\x00\x00j\x01\x00\x00\x00e."
    assert read_pickle(raw) == ["a", "a", {"a": 1}, {"a": 1}]


def test_operations_that_do_not_fit() -> None:
    """Operations on what is not there or of another kind are refused."""
    for raw in (b"e.", b"(e.", b"N(Ne.", b"N(Nu.", b"}(]Nu.", b"\x86.", b"q\x00.", b"t.", b"h\x00.", b"N.N",
                b"\x80\x09N.", b"X\x01\x00\x00\x00\xff."):  # fmt: skip
        assert reason(raw) == "malformed", raw


def read_bounded(raw: bytes) -> str:
    """Read in a process with the helper's memory."""
    script = (
        "import resource, sys; from exporters.flight_recorder.exporter import READER\n"
        "from exporters.flight_recorder.dump import RefusedError, read_pickle\n"
        "resource.setrlimit(resource.RLIMIT_AS, (READER.memory_bytes, READER.memory_bytes))\n"
        "try: read_pickle(sys.stdin.buffer.read()); print('read')\n"
        "except RefusedError as error: print(error.reason)\n"
        "except MemoryError: print('bomb')\n"
    )
    made = subprocess.run([sys.executable, "-c", script], input=raw, capture_output=True, check=True)
    return made.stdout.decode().strip()


def test_bombs_end_at_the_helpers_memory() -> None:
    """Numbers of noted values and lengths beyond the file end the value; deep nesting costs what the file does."""
    for raw, said in {
        b"\x80\x02Nr\xff\xff\xff\xff.": "bomb",
        b"\x80\x02Nr\x00\x00\x00\x80.": "bomb",
        b"\x80\x02X\xff\xff\xff\xff12": "incomplete",
        b"\x80\x02\x8a\xff12": "incomplete",
        b"](" * 50_000 + b"e" * 50_000 + b".": "read",
    }.items():
        assert read_bounded(raw) == said, raw[:20]


def test_values_that_hold_themselves() -> None:
    """A value that holds itself is read, and no dump."""
    itself: Any = read_pickle(b"]q\x00(h\x00e.")
    assert itself[0] is itself
    with pytest.raises(RefusedError):
        read_dump(b"}(X\x07\x00\x00\x00entries]q\x00(h\x00eu.", 0)


def reason(raw: bytes) -> str:
    """Why ``raw`` is refused; empty if it is read."""
    try:
        read_pickle(raw)
    except RefusedError as refused:
        return refused.reason
    return ""
