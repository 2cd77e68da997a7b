"""What is known of one file over several looks: what it held when it stood still, and how old that is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from exporters.inspector_prom.reading import Place
from exporters.inspector_prom.text import MeansKind, MeansRow, MeansText

STALE_INTERVALS = 3
"""Values not rewritten for this many intervals are old: the plugin leaves the last values of an idle GPU there."""
SERIES_PER_ROW = 2

Admit = Callable[[int], bool]
"""Requests a number of additional series; returns False when the limit is reached."""


class MeansFile(msgspec.Struct):
    """``seen``: where the file was at the last look, ``read``: where it was when ``rows`` were read from it.

    ``seen_at`` and ``read_at``: when it had been written by then: monotonic time, and seconds since the epoch.
    """

    seen: Place | None = None
    seen_at: tuple[float, float] = (float("-inf"), 0.0)
    read: Place | None = None
    read_at: tuple[float, float] = (float("-inf"), 0.0)
    rows: dict[MeansKind, MeansRow] = {}

    @property
    def written_seconds(self) -> float:
        """When its rows were written, since the epoch."""
        return self.read_at[1]

    def wants(self) -> Place | None:
        """Where the file must be found for it to be read; None: there is nothing new in it."""
        return self.seen if self.seen != self.read else None

    def note(self, place: Place, now: float, now_seconds: float) -> None:
        """Take in where the file is at the monotonic time ``now``.

        How old a file is that is seen for the first time, its modification time tells; after that our own clock does.
        """
        if place != self.seen:
            age = max(now_seconds - place[3] / 1e9, 0.0) if self.seen is None else 0.0
            self.seen, self.seen_at = place, (now - age, now_seconds - age)

    def take(self, text: MeansText, admit: Admit) -> Counter[str]:
        """Take in what it holds where it was seen last; return what was skipped, by reason."""
        self.read, self.read_at = self.seen, self.seen_at
        self.rows = {key: row for key, row in text.rows.items() if admit(SERIES_PER_ROW)}
        return text.skipped + Counter(series=len(text.rows) - len(self.rows))

    def is_fresh(self, now: float, interval_seconds: float) -> bool:
        """Return whether it has rows of the last STALE_INTERVALS."""
        return bool(self.rows) and now - self.read_at[0] <= STALE_INTERVALS * interval_seconds
