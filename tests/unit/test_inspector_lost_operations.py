"""Operations that ranks on this node lost in the plugin's ring or in its one slot, as scrapes show them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from inspector_records import append, line
from test_inspector_exporter import Bench, labelled, shown, view, writer
from test_inspector_formats import overflowing, p2p

from exporters.inspector.format.records import SeriesKey
from exporters.inspector.reading.reader import BATCH_IDLE_SECONDS
from exporters.inspector.rendering import InspectorSnapshot
from exporters.inspector.totals.accumulators import Accumulator
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import CommunicatorLabel, Inheritance

LOST = "rankwatch_communicator_lost_operations_total"
RING, P2P_RING = 128, 100
ABC = ("job", "abc")


def one_slot(text: bytes) -> bytes:
    """Return the lines as a plugin with one slot per communicator writes them: without the communicator's name."""
    return text.replace(b'"comm_name":"tp",', b"")


def bench_of(path: Path, *pids: int) -> Bench:
    """Return an exporter that follows the empty files of these processes, which have small rings."""
    bench = Bench(path)
    rings = {"COLL": RING, "P2P": P2P_RING}
    settings = {f"NCCL_INSPECTOR_DUMP_{kind}_RING_SIZE": str(lines) for kind, lines in rings.items()}
    bench.ranks.settings = dict.fromkeys(pids, settings)
    return bench.following(*pids)


def overflown(path: Path, pid: int, passes: int, dropped: int) -> None:
    """Write full passes of a rank, with ``dropped`` operations lost before each; operation 0 is in the first pass."""
    lines = [text.replace(b'"pid":7', b'"pid":%d' % pid) for text in overflowing(passes, RING, dropped)]
    append(path / f"here-pid{pid}.log", b"".join(lines))


def test_what_the_ring_lost_is_summed_over_the_ranks_here(tmp_path: Path) -> None:
    """Only overflows of the collectives' ring count, summed over the ranks on this node."""
    bench = bench_of(tmp_path, 7, 8)
    for pid in (7, 8):
        (tmp_path / f"here-pid{pid}.log").write_bytes(line(0, pid=pid, dump_timestamp_us=1_680_000_000_000_000))
    bench.look()  # the writers, and so their ring sizes, are known after this
    overflown(tmp_path, 7, 3, 40)
    overflown(tmp_path, 8, 2, 10)
    bench.look()
    lost = bench.look(BATCH_IDLE_SECONDS)[LOST]
    assert lost == {ABC: 3 * 40 + 2 * 10 - 2}
    append(tmp_path / "here-pid7.log", b"".join(p2p(number) for number in range(500, 500 + P2P_RING)))
    bench.look()
    values = bench.look(BATCH_IDLE_SECONDS)
    assert values["rankwatch_inspector_missing_records_total"]["job", "1", "overflow"] > lost[ABC]
    assert values[LOST] == lost
    bench.drain()


def test_it_never_falls_while_the_communicator_has_a_series(tmp_path: Path) -> None:
    """The losses of an ended rank stay while another rank has a series, even after a restart."""
    bench = bench_of(tmp_path, 7, 8)
    for pid, last in ((7, 5), (8, 3)):
        (tmp_path / f"here-pid{pid}.log").write_bytes(one_slot(line(0, pid=pid) + line(last, pid=pid)))
    bench.look()
    bench.look(BATCH_IDLE_SECONDS)
    keys = {writer_key.pid: writer_key for writer_key, *_ in bench.ranks.observed}
    bench.ranks.expired = {keys[7]}
    bench.look()
    assert bench.look()[LOST] == {ABC: 4 + 2}
    bench.drain()
    again = Bench(tmp_path, restored=bench.state.published).start()
    assert again.look()[LOST] == {ABC: 4 + 2}
    again.ranks.expired = {keys[8]}
    again.look()
    assert LOST not in again.look()
    assert not again.exporter._inherited.lost
    again.drain()


def losing(
    pid: int, lost: int, size: str = "8192", collective: str = "AllReduce", *, caught_up: bool = True
) -> WriterTotals:
    """Return a writer with one accumulator and ``lost`` lost operations."""
    totals = {SeriesKey("abc", 0, collective, size): Accumulator(1, 1, 1, 1)}
    return msgspec.structs.replace(writer(pid, caught_up=caught_up), totals=totals, lost={("abc", 0): lost})


def test_a_summand_behind_withholds_it() -> None:
    """The sum is withheld while a rank or reader has not caught up."""
    one, behind = losing(1, 5), losing(2, 3, "other", caught_up=False)
    labels = labelled(one) | labelled(behind, rank="2")
    snapshot = InspectorSnapshot(
        (view(one), view(behind)), labels, Inheritance({}, {}, {CommunicatorLabel(*ABC): 4}), 0
    )
    assert LOST not in shown(snapshot)
    whole = msgspec.structs.replace(snapshot, readers=(view(one), view(losing(2, 3, "other"))))
    assert shown(whole)[LOST] == {ABC: 4 + 5 + 3}
    assert LOST not in shown(msgspec.structs.replace(whole, unpublished=True))


def test_sends_alone_have_none() -> None:
    """A communicator without a series of a collective has no counter."""
    sends = losing(1, 5, collective="p2p_send")
    assert LOST not in shown(InspectorSnapshot((view(sends),), labelled(sends), Inheritance(), 0))
