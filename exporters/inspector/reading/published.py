"""What a reader publishes, to be rendered in another thread. Frozen."""

from __future__ import annotations

import msgspec

from exporters.inspector.format.records import Result
from exporters.inspector.reading.ownership import FileState
from exporters.inspector.totals.frozen import WriterTotals


class Published(msgspec.Struct, frozen=True):
    """One reader's state at the time of publication."""

    writers: tuple[WriterTotals, ...]
    caught_up: bool
    results: dict[Result, int]
    files: dict[FileState, int]
    skipped: dict[str, int]
    lag_bytes: int
    hole_bytes: int
    implausible: int = 0

    def withheld(self) -> Published:
        """Return the same as of a reader whose totals stand still: no series with a part in them is to be shown."""
        nothing = {"windows": (), "transfers": (), "pairs": ()}
        writers = tuple(msgspec.structs.replace(one, caught_up=False, **nothing) for one in self.writers)
        return msgspec.structs.replace(self, writers=writers, caught_up=False)
