"""What is known of one file over several looks: what it held when it stood still, and how old that is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from exporters.inspector_prom.reading import FoundFile, Place
from exporters.inspector_prom.text import Row, RowKey, parse

STALE_INTERVALS = 3
"""What was not written anew for so many intervals is old: the plugin leaves the last values of an idle GPU there."""
SERIES_PER_ROW = 2

Admit = Callable[[int], bool]
"""Asked for so many series more; False where there is no room."""


class MeansFile(msgspec.Struct):
    """``seen``: where the file was at the last look, ``read``: where it was when ``rows`` were read from it.

    ``seen_at`` and ``read_at``: when it had been written by then: monotonic time, and seconds since the epoch.
    """

    seen: Place | None = None
    seen_at: tuple[float, float] = (float("-inf"), 0.0)
    read: Place | None = None
    read_at: tuple[float, float] = (float("-inf"), 0.0)
    rows: dict[RowKey, Row] = {}

    @property
    def written_seconds(self) -> float:
        """When its rows were written, since the epoch."""
        return self.read_at[1]

    def wants(self) -> Place | None:
        """Where the file must be found for it to be read; None: there is nothing new in it."""
        return self.seen if self.seen != self.read else None

    def note(self, found: FoundFile, now: float, now_seconds: float, admit: Admit) -> Counter[str]:
        """Take in a look at the monotonic time ``now``; return what was skipped, by reason.

        How old a file is that is seen for the first time, its modification time tells; after that our own clock does.
        """
        if found.place != self.seen:
            modified = found.place[3] / 1e9
            age = max(now_seconds - modified, 0.0) if self.seen is None else 0.0
            self.seen, self.seen_at = found.place, (now - age, now_seconds - age)
        if found.raw is None:
            return Counter()
        self.read, self.read_at = found.place, self.seen_at
        text = parse(found.raw)
        largest_first = sorted(text.rows.items(), key=lambda item: (-item[0].size_bytes(), repr(item[0])))
        self.rows = {key: row for key, row in largest_first if admit(SERIES_PER_ROW)}
        if refused := len(text.rows) - len(self.rows):
            text.skipped["series"] += refused
        return text.skipped

    def is_fresh(self, now: float, interval_seconds: float) -> bool:
        """Whether it has rows of the last STALE_INTERVALS."""
        return bool(self.rows) and now - self.read_at[0] <= STALE_INTERVALS * interval_seconds
