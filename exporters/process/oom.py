"""Which processes the OOM killer ended, by the kill counts of their control groups. Pure.

A SIGKILL is the OOM killer's where the count of the process' group has grown since shortly before; where that group is
gone, the count of the nearest one above it that is still there. One kill has one victim: a sibling in the same group
that leaves a moment later was not the one that was counted. A group that is killed as a whole takes all with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class OomKills(NamedTuple):
    """What a group counts: processes that were killed, and groups that were killed as a whole."""

    kills: int
    groups: int = 0


class OomCount(msgspec.Struct, frozen=True):
    """What is known of a process' groups from before any recent kill.

    ``counters``: the files that count OOM kills, its own group's first, with their counts (None: could not be read).
    ``oomd``: the directories of those groups that root alone may write to, with systemd-oomd's counts.
    """

    counters: tuple[tuple[str, OomKills | None], ...] = ()
    oomd: tuple[tuple[str, int], ...] = ()


class OomNow(msgspec.Struct, frozen=True):
    """The nearest counter that could be read after a process left (empty: none), and whether systemd-oomd killed."""

    file: str = ""
    kills: OomKills = OomKills(0)
    by_oomd: bool = False


class OomLedger:
    """Remembers which kills have been assigned to a process. Used from one thread."""

    def __init__(self) -> None:
        self._assigned: dict[str, int] = {}

    def assign(self, before: OomCount | None, now: OomNow | None) -> bool:
        """Return True when the OOM killer killed the process with the count ``before``; the kill is then assigned."""
        if before is None or now is None:
            return False
        if now.by_oomd:
            return True
        files = [file for file, _ in before.counters]
        if now.file not in files:
            return False
        counted = [(file, known) for file, known in before.counters[files.index(now.file) :] if known is not None]
        known = counted[0][1]
        if now.kills.groups > known.groups:
            return True
        if now.kills.kills <= self._taken(now.file, known):
            return False
        for file, earlier in counted:  # the groups above count it too
            self._assigned[file] = self._taken(file, earlier) + 1
        return True

    def keep(self, counts: Iterable[OomCount]) -> None:
        """Forget all groups but these: a new group with an old name counts from zero."""
        files = {file for count in counts for file, _ in count.counters}
        self._assigned = {file: kills for file, kills in self._assigned.items() if file in files}

    def _taken(self, file: str, before: OomKills) -> int:
        return max(before.kills, self._assigned.get(file, 0))
