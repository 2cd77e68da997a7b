"""The rank table as others see it: frozen, for the render thread and the pages."""

from __future__ import annotations

import msgspec

from agent.core.identity import RankLabel
from agent.ranks.process import RankGpu, RankProcess


class RankView(msgspec.Struct, frozen=True):
    """One rank as published: its label and process, frozen at the time of the snapshot."""

    label: RankLabel
    slot: int
    process: RankProcess
    bus_bandwidth_bytes_per_second: float | None = None

    def gpus(self) -> tuple[RankGpu, ...]:
        """The rank's own GPUs: of a process of several ranks with as many GPUs each rank has one, in their order."""
        found, slots = self.process.gpus, self.process.slots or ()
        return (found[self.slot],) if len(found) == len(slots) > 1 else found


class RankSnapshot(msgspec.Struct, frozen=True):
    """What ``rank_families`` renders."""

    ranks: tuple[RankView, ...]
    conflicts: int
    duplicates: int
    refused: int
    unidentified: int
    unreadable: int
