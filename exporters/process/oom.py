"""Which processes the OOM killer ended, told by the kill counts of their control groups. Pure.

A SIGKILL is the OOM killer's where the count of the process' group has grown since shortly before. One kill has one
victim: a sibling in the same group that leaves a moment later was not the one that was counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class OomCount(msgspec.Struct, frozen=True):
    """The file that counts the OOM kills of a process' group (empty: none), and its count before any recent one."""

    file: str
    kills_before: int


class OomLedger:
    """Remembers which kills have been assigned to a process. Used from one thread."""

    def __init__(self) -> None:
        self._assigned: dict[str, int] = {}

    def assign(self, before: OomCount | None, kills: int | None) -> bool:
        """True when the OOM killer ended the process of which this was known; the kill is then no other's.

        ``kills``: what its group counts now, None where that could not be read.
        """
        if before is None or kills is None:
            return False
        assigned = max(before.kills_before, self._assigned.get(before.file, 0))
        if kills <= assigned:
            return False
        self._assigned[before.file] = assigned + 1
        return True

    def keep(self, counts: Iterable[OomCount]) -> None:
        """Forget all groups but these: one made anew under an old name counts from zero."""
        files = {count.file for count in counts}
        self._assigned = {file: kills for file, kills in self._assigned.items() if file in files}
