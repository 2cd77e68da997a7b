from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from exporters.inspector.format.records import (
    BROKEN,
    MAX_RANKS,
    P2P_RECV,
    P2P_SEND,
    SIZE_BOUNDS,
    SIZE_LABELS,
    bus_bytes_per_operation,
    communicator,
    decode_lines,
    size_label,
)

HEADER = '"header":{"id":"0x82bdbf0ea6cd18","comm_name":"tp","rank":1,"n_ranks":4,"nnodes":1}'
METADATA = '"metadata":{"dump_timestamp_us":5,"hostname":"gpu-node-00","pid":7,"git_rev":"","new":{"a":[1]}}'
COLLECTIVE = (
    '"coll_perf":{"coll":"AllReduce","coll_algo":"RING","coll_proto":"LL","coll_sn":3,"coll_msg_size_bytes":8192,'
    '"coll_exec_time_us":10,"coll_timing_source":"kernel_gpu","coll_busbw_gbs":"nan"}'
)


def line(*parts: str) -> bytes:
    """Return a line with these members."""
    return ("{" + ",".join(parts) + "}\n").encode()


@pytest.mark.parametrize("bad", [
    b"\n\n  \n", b'{"header":{"id":"0x1"', b"null", b"[]", b"7", b"\xff\xfe",
    line(HEADER.replace('"tp"', '"\xff"')).replace(b"\xc3\xbf", b"\xff"),
    line(HEADER.replace('"rank":1', '"rank":"1"')), line(HEADER.replace('"rank":1', '"rank":1.5')),
    line(COLLECTIVE.replace("8192", "9" * 5000)), line('"header":7'), b'{"x":' + b"[" * 100_000, b'{"x":inf}',
    b'{"x":NaN}',
])  # fmt: skip
def test_malformed_lines_are_counted_and_harm_no_other(bad: bytes) -> None:
    """An invalid line is counted once; the records before and after it are kept."""
    good = line(HEADER, METADATA, COLLECTIVE)
    records = decode_lines(good + bad.removesuffix(b"\n") + b"\n" + good)
    assert [record is BROKEN for record in records] == ([False, True, False] if bad.strip() else [False, False])


@pytest.mark.parametrize(("header_id", "rank", "n_ranks", "comm"), [
    ("0x82bdbf0ea6cd18", 0, 4, "82bdbf0ea6cd18"),
    ("0x82BD", 3, 4, "82bd"),
    ("0x0", 0, 1, "0"),
    ("0x82bdbf0ea6cd1812", 0, MAX_RANKS, "82bdbf0ea6cd18"),
    ("0x82bdbf0ea6cd18123", 0, 4, None),
    ("0x82bd", 0, MAX_RANKS + 1, None),
    ("0x82bd", 4, 4, None),
    ("0x82bd", -1, 4, None),
    ("0x82bd", 0, 0, None),
    ("0x", 0, 4, None),
    ("", 0, 4, None),
    ("0x82 d", 0, 4, None),
    ("world", 0, 4, None),
    ("0x٣", 0, 4, None),
])  # fmt: skip
def test_communicator(header_id: str, rank: int, n_ranks: int, comm: str | None) -> None:
    """A header names a communicator only if its id is a hash and its rank is within the communicator."""
    assert communicator(header_id, rank, n_ranks) == comm


FACTORS = {
    "AllReduce": lambda n: Fraction(2 * (n - 1), n),
    "AllGather": lambda n: Fraction(n - 1, n) * n,
    "AllGatherV": lambda n: Fraction(n - 1, n) * n,
    "ReduceScatter": lambda n: Fraction(n - 1, n) * n,
    "Broadcast": lambda _: Fraction(1),
    "Reduce": lambda _: Fraction(1),
    "SendRecv": lambda _: Fraction(1),
    P2P_SEND: lambda _: Fraction(1),
    P2P_RECV: lambda _: Fraction(1),
    "All2All": lambda _: Fraction(0),
    "Invalid": lambda _: Fraction(0),
}


@given(st.sampled_from(sorted(FACTORS)), st.integers(0, 2**63 - 1), st.integers(1, MAX_RANKS))
def test_bus_bytes(collective: str, size_bytes: int, n_ranks: int) -> None:
    """The bus bytes of one operation equal the plugin's formula exactly."""
    exact = FACTORS[collective](n_ranks) * size_bytes
    assert bus_bytes_per_operation(collective, size_bytes, n_ranks) == exact.numerator // exact.denominator


def test_size_classes() -> None:
    """Size classes are powers of four from 8 KiB to 32 GiB; a class includes its upper bound."""
    assert (SIZE_BOUNDS[0], SIZE_BOUNDS[-1], len(SIZE_LABELS)) == (8 * 1024, 32 * 1024**3, 13)
    assert [size_label(size) for size in (0, 8191, 8192, 8193, 32768, 32769)] == [
        "8192", "8192", "8192", "32768", "32768", "131072",
    ]  # fmt: skip
    assert (size_label(32 * 1024**3), size_label(32 * 1024**3 + 1)) == ("34359738368", "+Inf")
