"""How many records the plugin's rings hold, from the environment of the process that it runs in. Pure.

Of plugins/profiler/inspector, NCCL 2.30: one ring of completed collectives and one of P2P operations per communicator,
both emptied by each pass of the dump thread. A full one drops its oldest record for each new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.sdk.files import strtoll

DEFAULT_RING_LINES = 1024
MAX_RING_LINES = (1 << 32) - 1
MIN_WATCHED_LINES = 64
"""Smaller rings are not watched: to cut a file into such small passes costs ten times the reading, and any job may set
them. What they lost counts as `filtered_or_lost`."""


class RingSizes(NamedTuple):
    """Records that the rings of one process hold at most, so the lines that one pass writes of them at most."""

    collective: int = DEFAULT_RING_LINES
    p2p: int = DEFAULT_RING_LINES

    def smallest_watched(self) -> int:
        """Return the smaller of the sizes that are watched."""
        return min((lines for lines in self if lines >= MIN_WATCHED_LINES), default=MAX_RING_LINES)

    def of(self, *, p2p: bool) -> int:
        """Return the size of one of the two."""
        return self.p2p if p2p else self.collective


def ring_sizes(settings: Mapping[str, str]) -> RingSizes:
    """Return the ring sizes that a process with these environment variables has."""
    return RingSizes(
        _ring_lines(settings.get("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")),
        _ring_lines(settings.get("NCCL_INSPECTOR_DUMP_P2P_RING_SIZE")),
    )


def _ring_lines(text: str | None) -> int:
    """The plugin takes a number below 0 for a huge one, and 0, or what is no number, for 1."""
    if text is None:
        return DEFAULT_RING_LINES
    lines = strtoll(text)
    return MAX_RING_LINES if lines < 0 else min(MAX_RING_LINES, max(1, lines))
