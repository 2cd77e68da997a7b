"""Where exporters offer what they know for an evidence bundle: each a named part, made when a bundle is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from agent.evidence.summary import Event, Word


class Wanted(msgspec.Struct, frozen=True):
    """What a bundle is taken of: a job, its processes here, and the ranks most looked at, suspects first."""

    job_id: str
    pids: dict[str, int]
    suspects: tuple[str, ...]


class Offered(msgspec.Struct, frozen=True):
    """What a part gives: files by name in the bundle, and what it means for the summary."""

    files: dict[str, bytes]
    words: Sequence[Word] = ()
    events: Sequence[Event] = ()


Offer = Callable[[Wanted], Awaitable[Offered]]
"""Makes a part; may raise, and is given up after the deadline of the bundle: it costs that part only."""


class EvidenceBoard:
    """The offers by part's name; the exporter ``evidence`` asks them, nobody else."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}

    def offer(self, part: str, make: Offer) -> Callable[[], None]:
        """Offer a part from now on; returns what withdraws it (an exporter's stop does)."""
        self._offers[part] = make

        def withdraw() -> None:
            if self._offers.get(part) is make:
                del self._offers[part]

        return withdraw

    def offers(self) -> dict[str, Offer]:
        """The parts on offer now."""
        return dict(self._offers)
