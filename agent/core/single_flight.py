"""One piece of work for all who ask for the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

MAX_FLIGHTS = 16
"""Different pieces of work under way at once: askers that invent ever new ones must not pile them up."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooManyFlights(Exception):  # noqa: N818  # a refusal: the caller may come again
    """MAX_FLIGHTS different pieces of work are already under way."""


class SingleFlight(Generic[K, V]):
    """Runs ``work`` once for equal keys that are asked for while it is under way; nothing is kept afterwards.

    ``shared`` counts the askers who got a result that another had started.
    """

    def __init__(self, work: Callable[[K], Awaitable[V]]) -> None:
        self._work = work
        self._flights: dict[K, asyncio.Task[V]] = {}
        self.shared = 0

    async def get(self, key: K) -> V:
        """Return what ``work(key)`` returns, or raise what it raises; TooManyFlights when it cannot start.

        Cancelling one asker does not disturb the others, nor the work.
        """
        flight = self._flights.get(key)
        if flight is not None:
            self.shared += 1
        elif len(self._flights) >= MAX_FLIGHTS:
            raise TooManyFlights(f"{MAX_FLIGHTS} under way")
        else:
            flight = self._flights[key] = asyncio.create_task(self._run(key))
        return await asyncio.shield(flight)

    async def _run(self, key: K) -> V:
        try:
            return await self._work(key)
        finally:
            del self._flights[key]
