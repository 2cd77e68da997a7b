"""Where exporters offer what they know for an evidence bundle: each a named part, made when a bundle is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from agent.core.identity import RankLabel
from agent.evidence.summary import Event, Word


class Wanted(msgspec.Struct, frozen=True):
    """What a bundle is taken of: a job, the pids of its ranks here by rank, and suspects, the likeliest first."""

    job_id: str
    pids: Mapping[str, int]
    suspects: tuple[str, ...]


class Offered(msgspec.Struct, frozen=True):
    """What a part gives: files by their name in the bundle, and what they mean for the summary."""

    files: Mapping[str, bytes]
    words: Sequence[Word] = ()
    events: Sequence[Event] = ()


Offer = Callable[[Wanted], Awaitable[Offered]]
"""Makes a part; may raise, and is given up at the bundle's deadline: it costs that part only."""


class Offers:
    """What one exporter (``source``) offers, until it has ended; ``all`` is what every exporter does."""

    def __init__(self, board: EvidenceBoard, source: str) -> None:
        self._board = board
        self._source = source
        self._closed = False

    def offer(self, make: Offer) -> None:
        """Offer a part from now on, under the exporter's name."""
        if not self._closed:
            self._board.made_by[self._source] = make

    def all(self) -> dict[str, Offer]:
        """The parts on offer now, by the exporter that makes them."""
        return dict(self._board.made_by)

    def struck(self) -> Mapping[RankLabel, str]:
        """The ranks that run on hardware that has failed now, each with a check that says so."""
        return self._board.struck()

    def close(self) -> None:
        """Withdraw the offer, and take no more."""
        if not self._closed:
            self._closed = True
            self._board.made_by.pop(self._source, None)


class EvidenceBoard:
    """The offers of all exporters, and which ranks run on failed hardware. Every method is called in the event loop."""

    def __init__(self) -> None:
        self.made_by: dict[str, Offer] = {}
        self.struck: Callable[[], Mapping[RankLabel, str]] = dict

    def of(self, source: str) -> Offers:
        """What the exporter of this name offers."""
        return Offers(self, source)
