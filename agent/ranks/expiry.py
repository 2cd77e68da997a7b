"""Ranks that left: how long their record stays in the table, and which is removed first when it is full. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.identity import ProcessKey
from agent.ranks.process import RankProcess

TOMBSTONE_SECONDS = 900.0
FINISHED_SECONDS = 60.0


def is_over(process: RankProcess, holds_label: bool, now: float) -> bool:
    """True when the record of a process that left has expired.

    ``holds_label`` False: it was never bound, or a new incarnation took its labels.
    """
    if process.exited_at is None:
        return False
    finished = not holds_label or (process.verdict is not None and process.verdict.state == "finished")
    return now - process.exited_at > (FINISHED_SECONDS if finished else TOMBSTONE_SECONDS)


def oldest(processes: Mapping[ProcessKey, RankProcess]) -> ProcessKey | None:
    """The process that left first; None when all run."""
    left = [(process.exited_at, key) for key, process in processes.items() if process.exited_at is not None]
    return min(left)[1] if left else None
