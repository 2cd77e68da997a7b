"""Where reading stood in files that went out of sight: they may come back. Bounded, by a fair share for each user."""

from collections import Counter
from collections.abc import Iterable

from agent.tail.file import Position
from agent.tail.shares import FairTable

MAX_LEFT = 1024
"""Files out of sight whose position is kept: a file renamed or a directory unmounted may come back."""

Identity = tuple[int, int]


class LeftPositions:
    """Positions by identity, MAX_LEFT at most; what is evicted or refused is counted as ``left_limit``."""

    def __init__(self, positions: Iterable[Position], skipped: Counter[str]) -> None:
        self._positions: dict[Identity, Position] = {}
        self._shares: FairTable[Identity] = FairTable()
        self._skipped = skipped
        for position in positions:
            self.put(position)

    def all(self) -> list[Position]:
        """All of them."""
        return list(self._positions.values())

    def put(self, position: Position) -> None:
        """Keep one; at the limit, the share with the most entries loses its oldest one."""
        identity = (position.device, position.inode)
        self.pop(identity)
        if len(self._positions) >= MAX_LEFT:
            self._skipped["left_limit"] += 1
            oldest = next(iter(self._shares.of(self._shares.gives_way_to(position.share))), None)
            if oldest is None:
                return
            self.pop(oldest)
        self._positions[identity] = position
        self._shares.put(identity, position.share)

    def pop(self, identity: Identity) -> Position | None:
        """Take one out, if it is there."""
        self._shares.pop(identity)
        return self._positions.pop(identity, None)
