"""The last errors of each GPU in the log, and the places of a GPU where programs of several users fail. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedSeconds
from agent.sdk.hardware import Fault, FaultSeen, Told, fault_table, gpu_faults

MAX_GPUS = 64
MAX_PLACES = 256
"""Places of GPUs where a program failed. At this limit, a new place evicts the one with the oldest failure."""
MAX_USERS = 8
"""Users of one place. More users would add no information."""
REPEAT_USERS = 3
"""When the programs of this many users fail at one place of a GPU, the place is the cause.

Two users are too few: both programs may have an error in their first block, which mostly runs at the same place.
"""
REPEAT_SECONDS = 3 * 86400.0

_Users = dict[int, SavedSeconds]


class GpuErrors(msgspec.Struct):
    """Part of the checkpoint.

    ``faults``: by PCI address. ``places``: by address, code and place, the time of each user's last failure there.
    """

    faults: dict[str, Annotated[list[FaultSeen], msgspec.Meta(max_length=fault_table.MAX_FAULTS)]] = {}
    places: dict[tuple[str, str, str], _Users] = {}

    def see(self, pci: str, fault: Fault, seconds: float) -> None:
        """Add an error of the time ``seconds`` (epoch)."""
        if pci in self.faults or len(self.faults) < MAX_GPUS:
            self.faults[pci] = fault_table.add(self.faults.get(pci, ()), fault, seconds)

    def repeats(self, pci: str, told: Told, user: int, seconds: float) -> Told | None:
        """Add the place where a user's program failed, at ``seconds`` (epoch).

        Return the error with the unit REPEATED if programs of REPEAT_USERS users failed there, else None.
        """
        if not told.place or user < 0:
            return None
        key = (pci, told.code, told.place)
        users = {each: at for each, at in self.places.pop(key, {}).items() if seconds - at <= REPEAT_SECONDS}
        if user in users or len(users) < MAX_USERS:
            users[user] = seconds
        while len(self.places) >= MAX_PLACES:
            del self.places[next(iter(self.places))]
        self.places[key] = users  # the last one is the newest
        if len(users) < REPEAT_USERS:
            return None
        return msgspec.structs.replace(told, unit=gpu_faults.REPEATED)

    def forget(self, now_seconds: float) -> None:
        """Drop the faults that are too old to be shown."""
        kept = {pci: fault_table.recent(seen, now_seconds) for pci, seen in self.faults.items()}
        self.faults = {pci: seen for pci, seen in kept.items() if seen}
