"""A reader of Inspector files for tests, and what it published."""

from pathlib import Path
from typing import Any

from fake_clock import FakeClock

from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.record_files import Ownership
from exporters.inspector.reading.turn import Published, Turn

EVERYONE = Ownership(everyone=True)


def make(root: Path, clock: FakeClock | None = None, restored: bytes | None = None, **more: Any) -> DirectoryReader:
    """A reader of every file from its beginning, without a budget's end."""
    more.setdefault("from_beginning", True)
    return DirectoryReader(root, clock or FakeClock(), lambda *_: True, restored=restored, **more)


def all_of(reader: DirectoryReader, ownership: Ownership = EVERYONE) -> Turn:
    """Turn until nothing waits; return a last turn."""
    while reader.turn(ownership).waiting:
        pass
    return reader.turn(ownership, last=True)


def published(turn: Turn) -> Published:
    """What a turn published."""
    assert turn.published is not None
    return turn.published


def read(reader: DirectoryReader) -> Published:
    """All that is there; the reader ends."""
    view = published(all_of(reader))
    reader.close()
    return view


def sums_of(view: Published) -> dict[tuple[Any, ...], list[int]]:
    """Published totals in the form of ``expected_sums``, those of all generations of a file together."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for writer in view.writers:
        for key, own in writer.totals.items():
            known = sums.setdefault((writer.writer_key.hostname, writer.writer_key.pid, *key), [0, 0, 0, 0])
            new = (own.operations, own.message_bytes, own.microseconds, own.bus_bytes)
            known[:] = map(sum, zip(known, new, strict=True))
    return sums
