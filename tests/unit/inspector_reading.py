"""A reader of Inspector files for tests, and its published results."""

from pathlib import Path
from typing import Any

from fake_clock import FakeClock

from agent.sdk.metrics import Family
from agent.sdk.ranks import RankLabel
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.record_files import Ownership
from exporters.inspector.reading.turn import Published, TurnResult
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import Inheritance

EVERYONE = Ownership(everyone=True)


def make(root: Path, clock: FakeClock | None = None, restored: bytes | None = None, **more: Any) -> DirectoryReader:
    """Return a reader that reads every file from its beginning, with no limit of series."""
    more.setdefault("from_beginning", True)
    return DirectoryReader(root, clock or FakeClock(), lambda *_: True, restored=restored, **more)


def all_of(reader: DirectoryReader, ownership: Ownership = EVERYONE) -> TurnResult:
    """Run the reader's turns until no unread bytes are left; return the result of one last turn."""
    while reader.turn(ownership).waiting:
        pass
    return reader.turn(ownership, last=True)


def published(turn: TurnResult) -> Published:
    """Return the results that a turn published."""
    assert turn.published is not None
    return turn.published


def read(reader: DirectoryReader) -> Published:
    """Read all files, close the reader, and return its results."""
    view = published(all_of(reader))
    reader.close()
    return view


def sums_of(view: Published) -> dict[tuple[Any, ...], list[int]]:
    """Return published totals in the form of ``Expected.sums``; the totals of a file's generations are added up."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for writer in view.writers:
        for key, total in writer.totals.items():
            known = sums.setdefault((writer.writer_key.hostname, writer.writer_key.pid, *key), [0, 0, 0, 0])
            new = (total.operations, total.message_bytes, total.microseconds, total.bus_bytes)
            known[:] = map(sum, zip(known, new, strict=True))
    return sums


def rendered(family: Family, *aggregates: Aggregate, withheld: bool = False) -> dict[tuple[str, ...], float]:
    """Return a family's series of these writers, which are of job 7; their ranks are those in the communicator.

    ``withheld``: their reader hangs.
    """
    writers = tuple(WriterTotals.of(one, caught_up=True) for one in aggregates)
    labels = {(one.writer_key, *place): RankLabel("7", str(place[1])) for one in writers for place in one.places}
    reader = Published(writers, caught_up=True, results={}, files={}, skipped={}, lag_bytes=0)
    snapshot = InspectorSnapshot((reader.withheld() if withheld else reader,), labels, Inheritance())
    (metric,) = [metric for metric in render(snapshot) if metric.family is family]
    return dict(zip(metric.labels, metric.values, strict=True))
