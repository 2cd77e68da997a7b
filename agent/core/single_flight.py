"""One piece of work for all who ask for the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs ``work`` once for all requests of one key that arrive while it runs. It keeps no result afterwards.

    All keys may be under way at once: callers bound how many keys there are. ``shared`` counts the requests that got a
    result which another had started.
    """

    def __init__(self, work: Callable[[K], Awaitable[V]]) -> None:
        self._work = work
        self._flights: dict[K, asyncio.Task[V]] = {}
        self.shared = 0

    async def get(self, key: K) -> V:
        """Return what ``work(key)`` returns, or raise what it raises.

        Cancelling one request does not disturb the others, nor the work.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(self._run(key))
        else:
            self.shared += 1
        return await asyncio.shield(flight)

    async def _run(self, key: K) -> V:
        try:
            return await self._work(key)
        finally:
            del self._flights[key]
