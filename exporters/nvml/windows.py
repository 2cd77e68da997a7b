"""How often something was amiss at the last looks: what passes is no fault, what keeps coming back is. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from agent.sdk.hardware import CheckState

LOOKS = 30
FLAGGED_LOOKS = 15
"""More flagged looks of the last LOOKS than this are too many."""
_MASK = (1 << LOOKS) - 1

Key = TypeVar("Key")


class Windows(Generic[Key]):
    """One window of LOOKS looks per key."""

    def __init__(self) -> None:
        self._bits: dict[Key, int] = {}

    def add(self, key: Key, flagged: bool) -> None:
        """Take a look."""
        self._bits[key] = (self._bits.get(key, 0) << 1 | flagged) & _MASK

    def ratio(self, key: Key) -> float | None:
        """Flagged looks among the last LOOKS, those before the first counted as well; None without any."""
        bits = self._bits.get(key)
        return None if bits is None else bits.bit_count() / LOOKS

    def is_well(self, key: Key) -> bool:
        """False while too many are flagged."""
        return self._bits.get(key, 0).bit_count() <= FLAGGED_LOOKS

    def levels(self) -> dict[Key, CheckState]:
        """By key: FAILED while too many are flagged."""
        return {key: CheckState.of(self.is_well(key)) for key in self._bits}
