"""The registry of evidence: exporters register functions for the parts of bundles, and report stalled jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from agent.core.identity import RankLabel
from agent.core.leased import Leased
from agent.evidence.summary import Event, Word


class Wanted(msgspec.Struct, frozen=True):
    """The request for a bundle: a job, the pids of its ranks on this node, and suspects, the likeliest first."""

    job_id: str
    pids: Mapping[str, int]
    suspects: tuple[str, ...]


class Offered(msgspec.Struct, frozen=True):
    """A part of a bundle: files by name, and statements and events for the summary. ``why``: why it is empty."""

    files: Mapping[str, bytes]
    words: Sequence[Word] = ()
    events: Sequence[Event] = ()
    why: str = ""


Offer = Callable[[Wanted], Awaitable[Offered]]
"""Makes a part. If it raises, or takes longer than the bundle's deadline, only this part is missing."""
Stalls = Callable[[], Mapping[str, float]]
"""Returns each stalled job with the length of its stall (s) at the exporter's last update.

Called often, so it must be cheap.
"""
Files = Callable[[str], Awaitable[bytes | None]]
"""Takes the name of a bundle's file and returns the file; None without such a file. Can raise OSError."""


class Offers(Leased["EvidenceRegistry"]):
    """Writes the parts and reports of one exporter (``source``) to the registry."""

    def __init__(self, registry: EvidenceRegistry, source: str) -> None:
        super().__init__(registry)
        self.source = source
        self.make: Offer | None = None
        self.read_stalls: Stalls = dict
        self.files: Files | None = None

    def offer(self, make: Offer) -> None:
        """From now on call ``make`` for a part of each bundle; the part has the exporter's name."""
        self.ensure_open()
        self.make = make

    def all(self) -> dict[str, Offer]:
        """Return for each exporter the function that makes its part."""
        return {offers.source: offers.make for offers in self._table.offers if offers.make is not None}

    def tell_stalls(self, stalls: Stalls) -> None:
        """From now on get the exporter's stalled jobs from ``stalls``."""
        self.ensure_open()
        self.read_stalls = stalls

    def stalls(self) -> dict[str, float]:
        """Return the stalled jobs of all exporters, each with the longest stall that an exporter reports."""
        longest: dict[str, float] = {}
        for offers in self._table.offers:
            for job_id, seconds in offers.read_stalls().items():
                longest[job_id] = max(seconds, longest.get(job_id, seconds))
        return longest

    def serve(self, files: Files) -> None:
        """From now on get files of bundles from ``files``."""
        self.ensure_open()
        self.files = files

    def struck(self) -> Mapping[RankLabel, str]:
        """Return the ranks on hardware that has failed, each with a failed check."""
        return self._table.struck()

    def close(self) -> None:
        """Withdraw the parts and reports of this exporter."""
        self._table.offers = [offers for offers in self._table.offers if offers is not self]
        super().close()


class EvidenceRegistry:
    """The parts of all exporters, stalled jobs, and ranks on failed hardware. Every method runs in the event loop."""

    def __init__(self) -> None:
        self.offers: list[Offers] = []
        self.struck: Callable[[], Mapping[RankLabel, str]] = dict

    def of(self, source: str) -> Offers:
        """Return the writer for the exporter ``source``."""
        self.offers.append(Offers(self, source))
        return self.offers[-1]

    async def file(self, name: str) -> bytes | None:
        """Return the file ``name`` of a bundle; None without such a file, or if no exporter serves files."""
        for offers in self.offers:
            if offers.files is not None and (content := await offers.files(name)) is not None:
                return content
        return None
