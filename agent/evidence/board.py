"""Where exporters offer what they know for a bundle: each a named part, made when a bundle is taken; and which jobs
stand still by what they read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from agent.core.identity import RankLabel
from agent.core.leased import Leased
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


Stalls = Callable[[], Mapping[str, float]]
"""The jobs (ids) that stand still, and for how many seconds they did when that was last seen. Called often: it must
cost little."""


Files = Callable[[str], Awaitable[bytes | None]]
"""Gives a file of a bundle by its name; None where there is none of that name. May raise OSError."""


class Offers(Leased["EvidenceBoard"]):
    """What one exporter (``source``) offers while it is on the board."""

    def __init__(self, board: EvidenceBoard, source: str) -> None:
        super().__init__(board)
        self.source = source
        self.make: Offer | None = None
        self.read_stalls: Stalls = dict
        self.files: Files | None = None

    def offer(self, make: Offer) -> None:
        """Offer a part from now on, under the exporter's name."""
        self.ensure_open()
        self.make = make

    def all(self) -> dict[str, Offer]:
        """Return the parts that all exporters offer now, by the exporter that makes them."""
        return {offers.source: offers.make for offers in self._table.offers if offers.make is not None}

    def tell_stalls(self, stalls: Stalls) -> None:
        """Tell from now on which jobs stand still."""
        self.ensure_open()
        self.read_stalls = stalls

    def stalls(self) -> dict[str, float]:
        """The jobs that stand still by any exporter, and for how many seconds by the one that saw it for longest."""
        longest: dict[str, float] = {}
        for offers in self._table.offers:
            for job_id, seconds in offers.read_stalls().items():
                longest[job_id] = max(seconds, longest.get(job_id, seconds))
        return longest

    def serve(self, files: Files) -> None:
        """Give files of bundles from now on to who may have them."""
        self.ensure_open()
        self.files = files

    def struck(self) -> Mapping[RankLabel, str]:
        """Return the ranks that run on hardware that has failed now, each with a check that says so."""
        return self._table.struck()

    def close(self) -> None:
        """Withdraw what it offers and tells."""
        self._table.offers = [offers for offers in self._table.offers if offers is not self]
        super().close()


class EvidenceBoard:
    """The offers of all exporters, the jobs that stand still, and which ranks run on failed hardware.

    Every method is called in the event loop.
    """

    def __init__(self) -> None:
        self.offers: list[Offers] = []
        self.struck: Callable[[], Mapping[RankLabel, str]] = dict

    def of(self, source: str) -> Offers:
        """Return the place for what the exporter of this name offers."""
        self.offers.append(Offers(self, source))
        return self.offers[-1]

    async def file(self, name: str) -> bytes | None:
        """A file of a bundle by its name; None where there is none, or none are served."""
        for offers in self.offers:
            if offers.files is not None and (content := await offers.files(name)) is not None:
                return content
        return None
