import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from hypothesis import given, strategies as st
from inspector_expected import expected, unpacked
from inspector_reading import EVERYONE, make, published, read, sums_of
from inspector_records import DATA, append, line

from agent.sdk.ranks import WriterKey
from exporters.inspector.format.passes import (
    DEFAULT_RING_LINES,
    MAX_BATCH_LINES,
    MAX_RING_LINES,
    MAX_STEP_US,
    FileContext,
    ring_sizes,
)
from exporters.inspector.format.records import Result
from exporters.inspector.reading import reader as module
from exporters.inspector.reading.intake import finish_run, take
from exporters.inspector.reading.turn import Published
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.losses import Tally

CAUSES = ("overflow", "one_slot", "otherwise")
FOLDERS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
HEADER = {"id": "0xabc", "comm_name": "tp", "rank": 1, "n_ranks": 4, "nnodes": 1}
METADATA = {"dump_timestamp_us": 1_690_000_000_000_000, "hostname": "here", "pid": 7}


def tallies_of(view: Published) -> Counter[str]:
    """Return the published counts of all ranks, without zeros."""
    counts: Counter[str] = Counter()
    for writer in view.writers:
        for (_, _, tally), count in writer.tallies.items():
            counts[tally.removeprefix("missing_")] += count
    return +counts


def p2p(sn: int, name: str = "Send", **changes: Any) -> bytes:
    """Return the line of one P2P operation."""
    perf: dict[str, Any] = {"p2p": name, "p2p_sn": sn, "p2p_peer": 2, "p2p_msg_size_bytes": 8192}
    perf |= {"p2p_exec_time_us": 10, "p2p_timing_source": "kernel_gpu", "p2p_algobw_gbs": "nan"}
    return dumped(header=HEADER, metadata=METADATA, p2p_perf=perf | changes)


def marker(lines: int, comm: str = "0xabc", *, dropped: int = 0, at_us: int = 0, **stats: int) -> bytes:
    """Return the first line of a batch."""
    metadata = METADATA | {"dump_timestamp_us": METADATA["dump_timestamp_us"] + at_us}  # type: ignore[operator]
    members = {
        "coll_records": lines,
        "coll_dropped_total": 7,
        "coll_dropped_since_last_dump": dropped,
        "p2p_records": 0,
    }
    return dumped(header=HEADER | {"id": comm}, metadata=metadata, dump_stats=members | stats)


PROXY_STEP = {
    "record_type": "proxy_op", "proxy_op_sn": 12, "rank": 2, "peer": 3, "direction": "send", "is_final": True,
    "trans_size_bytes": 1048576, "total_us": 70, "op_bw_gbs": 14.9,
    "steps": [{"proxy_step_sn": 1, "total_us": 40, "gpu_produce_us": 10, "peer_credit_us": 10, "wire_us": 10}],
}  # fmt: skip
"""A step in format v4.4 of Inspector's README."""


def bare(text: bytes) -> bytes:
    """Return a line without its header and metadata."""
    record = json.loads(text)
    return dumped(**{name: record[name] for name in record if name not in ("header", "metadata")})


def dumped(**members: Any) -> bytes:
    """Return a line with these members."""
    return json.dumps(members, separators=(",", ":")).encode() + b"\n"


class Sink:
    """One aggregate that takes lines in any number of reads."""

    def __init__(self, *, from_start: bool = True) -> None:
        self.aggregate = Aggregate(WriterKey(1, 2, 0, "here", 7), lambda *_: True, from_start=from_start)
        self.context = FileContext()
        self.results: Counter[Result] = Counter()

    def take(self, *lines: bytes) -> Counter[Result]:
        """Add lines as one read; return the results of all lines so far."""
        take(b"".join(lines), lambda _: self.aggregate, self.results, self.context, min(self.aggregate.rings))
        return +self.results

    def finish(self) -> "Sink":
        """End the last batch."""
        finish_run(self.context, lambda _: self.aggregate)
        return self

    def count(self, tally: Tally) -> int:
        """Return the sum of a count over all ranks."""
        return sum(count for (_, _, own), count in self.aggregate.losses.tallies().items() if own is tally)

    def causes(self) -> tuple[int, int, int]:
        """Return missing records by cause: overflow, one slot, other."""
        overflow, one_slot, otherwise = Tally.MISSING_OVERFLOW, Tally.MISSING_ONE_SLOT, Tally.MISSING_OTHERWISE
        return self.count(overflow), self.count(one_slot), self.count(otherwise)


@pytest.mark.parametrize("folder", FOLDERS)
def test_recorded_folders(folder: str, tmp_path: Path) -> None:
    """Results, sums and gaps of every kind of recorded file equal those that a plain loop computes."""
    root = unpacked(DATA / folder, tmp_path)
    view, reference = read(make(root)), expected(root)
    assert {result.value: count for result, count in view.results.items() if count} == reference.results
    assert sums_of(view) == reference.sums
    tallies = tallies_of(view)
    assert tallies["seen"] == reference.seen
    assert {cause: count for cause, count in tallies.items() if cause in CAUSES} == reference.missing


def batch_file() -> bytes:
    """Return batches of two communicators with different sizes, losses, P2P and proxy lines."""
    text = b""
    for number in range(2):
        for comm, size in (("0xaaa", 8192), ("0xbbb", 32768)):
            text += marker(2, comm, dropped=number * 3, p2p_records=1, proxy_records=1)
            for sn in (0, 2):
                text += bare(line(number * 9 + sn, coll_msg_size_bytes=size))
            text += bare(p2p(number + 1, p2p_msg_size_bytes=size)) + dumped(proxy_trace=PROXY_STEP)
    return text


def test_restart_within_a_batch(tmp_path: Path) -> None:
    """A restart at any byte of a file gives the same totals as one read."""
    content, path = batch_file(), tmp_path / "here-pid7.log"
    path.write_bytes(content)
    whole = read(make(tmp_path))
    assert whole.results == {Result.DUMP_STATS: 4, Result.ACCEPTED: 12, Result.PROXY_TRACE: 4}
    assert tallies_of(whole) == {"seen": 12, "overflow": 2 * 3, "otherwise": 2 * (1 + 6 + 1 - 3)}
    for cut in range(0, len(content) + 1, 53):
        root = tmp_path / str(cut)
        root.mkdir()
        log = root / "here-pid7.log"
        log.write_bytes(content[:cut])
        reader = make(root)
        section = reader.turn(EVERYONE, last=True).section
        reader.close()
        append(log, content[cut:])
        view = read(make(root, restored=section))
        assert (sums_of(view), tallies_of(view), +Counter(view.results)) == (
            sums_of(whole), tallies_of(whole), +Counter(whole.results),
        )  # fmt: skip


@pytest.mark.parametrize("lost", [b"\0" * 5000, b"x" * 1_100_000 + b"\n"])
def test_a_hole_ends_the_batch(tmp_path: Path, lost: bytes) -> None:
    """After a hole or an overlong line, a line without a header is `bare`."""
    (tmp_path / "here-pid7.log").write_bytes(marker(3) + bare(line(0)) + lost + bare(line(1)))
    results = read(make(tmp_path)).results
    assert (results[Result.ACCEPTED], results[Result.BARE]) == (1, 1)


def test_a_batch_ends_with_its_last_line() -> None:
    """A line beyond the announced number is `bare`."""
    results = Sink().take(marker(1), bare(line(0)), bare(line(1)))
    assert results == {Result.DUMP_STATS: 1, Result.ACCEPTED: 1, Result.BARE: 1}


@pytest.mark.parametrize(
    ("lines", "results"), [
        (MAX_BATCH_LINES, {Result.DUMP_STATS, Result.ACCEPTED}), (0, {Result.DUMP_STATS, Result.BARE}),
        (MAX_BATCH_LINES + 1, {Result.GARBAGE, Result.BARE}), (-1, {Result.GARBAGE, Result.BARE}),
    ]
)  # fmt: skip
def test_announced_lines_are_bounded(lines: int, results: set[Result]) -> None:
    """If a batch's first line announces too many lines or a negative number, it is garbage, and the next is `bare`."""
    assert Sink().take(marker(lines), bare(line(0))) == dict.fromkeys(results, 1)


@given(
    st.lists(st.tuples(st.integers(0, 19), st.sampled_from(["cut", "merge", "spoil"])), max_size=4),
    st.lists(st.integers(0, 3000), max_size=3),
)
def test_no_line_goes_to_another_communicator(damages: list[tuple[int, str]], reads: list[int]) -> None:
    """Cut, merged and damaged lines never count for another communicator or twice."""
    lines = batch_file().splitlines(keepends=True)
    for position, what in damages:
        record = lines[position % len(lines)]
        damaged = {"cut": record[: len(record) // 2] + b"\n", "merge": record[:-1], "spoil": b"\xff" + record}
        lines[position % len(lines)] = damaged[what]
    sink, text = Sink(), b"".join(lines)
    ends = sorted({text.rfind(b"\n", 0, cut) + 1 for cut in reads} | {0, len(text)})
    for start, end in pairwise(ends):
        sink.take(text[start:end])
    assert all((key.comm, key.size) in {("aaa", "8192"), ("bbb", "32768")} for key in sink.aggregate.accumulators)
    assert all(record.operations <= 4 for record in sink.aggregate.accumulators.values())
    assert sum(sink.results.values()) <= len(lines)


@pytest.mark.parametrize(("changes", "result"), [
    ({"coll_msg_size_bytes": 2**64 - 4096}, Result.GARBAGE),
    ({"coll_exec_time_us": 2**63}, Result.GARBAGE),
    ({"coll_sn": -1}, Result.GARBAGE),
    ({"coll_sn": 2**60}, Result.GARBAGE),
    ({"coll_exec_time_us": 0}, Result.ZERO_TIME),
    ({"coll_timing_source": "kernel_cpu"}, Result.NOT_KERNEL_TIMED),
])  # fmt: skip
def test_what_is_refused_is_not_missing(changes: dict[str, Any], result: Result) -> None:
    """A refused record leaves no gap."""
    sink = Sink()
    assert sink.take(line(0), line(1, **changes), line(2)) == {Result.ACCEPTED: 2, result: 1}
    assert sink.finish().causes() == (0, 0, 0)
    assert (sink.count(Tally.SEEN), sink.count(Tally.UNTIMED_ZERO)) == (3, result is Result.ZERO_TIME)


def test_what_the_plugin_says_it_dropped() -> None:
    """Gaps after a batch's first line are overflow, up to the plugin's count of dropped operations."""
    sink = Sink()
    sink.take(marker(2), line(0), line(2), marker(1, dropped=5), line(4))
    assert sink.finish().causes() == (1, 0, 1)
    sink.take(line(10), line(12))
    assert sink.finish().causes() == (5, 0, 1 + 2)
    sink.take(marker(1, p2p_dropped_since_last_dump=4), p2p(6))
    assert sink.finish().causes() == (5 + 4, 0, 3 + 1)


def ring(lines: int, first: int, *, at_us: int, step_us: int = 3, name: str = "AllReduce") -> list[bytes]:
    """Return a batch of consecutive operations."""
    base = 1_690_000_000_000_000 + at_us
    return [line(first + n, coll=name, dump_timestamp_us=base + n * step_us) for n in range(lines)]


def overflowing(passes: int, lines: int, lost: int) -> list[bytes]:
    """Return passes, a minute apart, of ``lines`` lines each; ``lost`` operations are lost before each pass."""
    base = 1_690_000_000_000_000
    places = [(number, n) for number in range(passes) for n in range(lines)]
    return [
        line(number * (lost + lines) + lost + n, dump_timestamp_us=base + number * 60_000_000 + n * 3)
        for number, n in places
    ]


@pytest.mark.parametrize(("lines", "step_us", "is_overflow"), [
    (DEFAULT_RING_LINES, 3, True),
    (DEFAULT_RING_LINES, MAX_STEP_US, True),
    (DEFAULT_RING_LINES, MAX_STEP_US + 1, False),
    (DEFAULT_RING_LINES + 1, 3, False),
    (DEFAULT_RING_LINES - 1, 3, False),
    (DEFAULT_RING_LINES // 2, 3, False),
])  # fmt: skip
@pytest.mark.parametrize("read_lines", [1, 7, 100, 10_000])
def test_a_full_ring_is_an_overflow(lines: int, step_us: int, is_overflow: bool, read_lines: int) -> None:
    """Gaps before a pass with as many lines as the ring are overflow, however many reads the pass takes."""
    apart = 60_000_000
    text = [*ring(10, 0, at_us=0), *ring(lines, 50, at_us=apart, step_us=step_us)]
    text += ring(10, 50 + lines + 3, at_us=3 * apart)
    sink = Sink()
    for start in range(0, len(text), read_lines):
        sink.take(*text[start : start + read_lines])
    assert sink.finish().causes() == ((40, 0, 3) if is_overflow else (0, 0, 43))


def test_more_lines_than_a_ring_holds_are_no_pass() -> None:
    """When a pass is longer than the ring, its missing records are counted before it ends."""
    sink = Sink()
    sink.take(*ring(DEFAULT_RING_LINES, 50, at_us=0))
    assert sink.causes() == (0, 0, 0)
    sink.take(*ring(100, 50 + DEFAULT_RING_LINES + 7, at_us=3 * DEFAULT_RING_LINES))
    assert sink.causes() == (0, 0, 57)


@pytest.mark.parametrize(("text", "lines"), [
    (None, DEFAULT_RING_LINES), ("128", 128), (" 0x80", 128), ("0200", 128), ("+256k", 256), ("0", 1), ("", 1),
    ("many", 1), ("-1", MAX_RING_LINES), (str(2**32 - 1), MAX_RING_LINES), (str(2**32), MAX_RING_LINES),
    ("9" * 1024, MAX_RING_LINES),
])  # fmt: skip
def test_ring_sizes(text: str | None, lines: int) -> None:
    """The ring sizes are read from the environment as the plugin reads them."""
    names = ("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE", "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE")
    for number, name in enumerate(names):
        sizes = ring_sizes({} if text is None else {name: text})
        assert (sizes[number], sizes[1 - number]) == (lines, DEFAULT_RING_LINES)


def test_a_full_ring_of_late_records() -> None:
    """A full ring with gaps that close later is no overflow, and hides no later loss."""
    sink = Sink()
    sink.take(line(DEFAULT_RING_LINES, dump_timestamp_us=1_600_000_000_000_000))
    sink.take(*ring(DEFAULT_RING_LINES, 0, at_us=0, step_us=0))
    sink.take(*ring(3, DEFAULT_RING_LINES + 6, at_us=60_000_000))
    assert sink.finish().causes() == (0, 0, 5)


def test_gaps_await_the_end_of_their_batch(tmp_path: Path) -> None:
    """Gaps count when their batch ends (BATCH_IDLE_SECONDS after its last line), even after an agent restart."""
    text, path = ring(DEFAULT_RING_LINES, 50, at_us=0), tmp_path / "here-pid7.log"
    path.touch()
    clock = FakeClock()
    reader = make(tmp_path, clock)
    reader.turn(EVERYONE, last=True)
    path.write_bytes(b"".join(text[:200]))
    reader.turn(EVERYONE)
    section = reader._save(clock.monotonic(), due=True)
    reader.close()
    second = make(tmp_path, clock, section, from_beginning=False)
    assert tallies_of(published(second.turn(EVERYONE, last=True))) == {"seen": 200}
    append(path, b"".join(text[200:]))
    clock.advance(1.0)
    assert tallies_of(published(second.turn(EVERYONE, last=True))) == {"seen": DEFAULT_RING_LINES}
    clock.advance(module.BATCH_IDLE_SECONDS)
    assert tallies_of(published(second.turn(EVERYONE, last=True))) == {"seen": DEFAULT_RING_LINES, "overflow": 50}
    second.close()


def test_a_batch_cut_short_by_a_new_generation(tmp_path: Path) -> None:
    """Gaps of the last batch before a new generation of the file have no known cause."""
    path, clock = tmp_path / "here-pid7.log", FakeClock()
    path.write_bytes(b"".join(ring(100, 50, at_us=0)))
    reader = make(tmp_path, clock)
    reader.turn(EVERYONE)
    path.write_bytes(line(0))
    clock.advance(1.0)
    reader.turn(EVERYONE)
    clock.advance(1.0)
    assert tallies_of(published(reader.turn(EVERYONE))) == {"seen": 101, "otherwise": 50}
    reader.close()
