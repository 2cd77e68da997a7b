"""What the next lines of a file mean depends on those before: the batch under way, and its first line. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from exporters.inspector.format.passes import Run
from exporters.inspector.format.records import DumpStats, Header, Metadata

MAX_BATCH_LINES = 1 << 20
"""More than this of one kind no batch announces."""


class FileContext(msgspec.Struct):
    """The newest formats give header and metadata in the `dump_stats` line only, for as many lines as it announces.

    ``lines`` are those still to come. ``run``: lines written at once whose end is not read yet.
    """

    header: Header | None = None
    metadata: Metadata | None = None
    lines: Annotated[int, msgspec.Meta(ge=0, le=3 * MAX_BATCH_LINES)] = 0
    run: Run | None = None

    def begin(self, header: Header, metadata: Metadata, stats: DumpStats) -> bool:
        """Take in a batch's first line; False when it cannot be true."""
        announced = (stats.coll_records, stats.p2p_records, stats.proxy_records)
        if not all(0 <= lines <= MAX_BATCH_LINES for lines in announced):
            self.end()
            return False
        self.header, self.metadata, self.lines = header, metadata, sum(announced)
        return True

    def next(self) -> tuple[Header, Metadata] | None:
        """Header and metadata of a line without its own; None when no batch announced it."""
        if self.header is None or self.metadata is None:
            return None
        found = (self.header, self.metadata)
        self.lines -= 1
        if self.lines <= 0:
            self.end()
        return found

    def end(self) -> None:
        """Lines were lost, maybe a batch's first: until the next one it is unknown whose the lines are."""
        self.header = self.metadata = None
        self.lines = 0

    def is_empty(self) -> bool:
        """Return whether there is nothing to keep."""
        return self.header is None and self.run is None
