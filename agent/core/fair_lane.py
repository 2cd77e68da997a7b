"""Run one work item at a time; the peers that request items (such as HTTP clients) take turns."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Flight(Generic[V]):
    task: asyncio.Task[V]
    turn: asyncio.Event
    requests: int = 0


class FairLane(Generic[K, V]):
    """Runs ``work`` for one key at a time, with peers in turn.

    A peer waits for at most one work item of every other peer.

    Requests for equal keys share one result, which is not cached. A key that several peers request is in the queue of
    each peer, and runs when the first of these peers has its turn. Callers limit the number of requests.
    """

    def __init__(self, work: Callable[[K], Awaitable[V]]) -> None:
        self._work = work
        self._flights: dict[K, _Flight[V]] = {}
        self._queues: dict[str, dict[K, None]] = {}
        self._busy = False
        self._served = ""

    async def get(self, peer: str, key: K) -> V:
        """Return the result of ``work(key)``, or raise its exception.

        A cancelled request disturbs no other request and no running work. Work begins only while a request waits.
        """
        flight = self._flights.get(key)
        if flight is None:
            turn = asyncio.Event()
            flight = self._flights[key] = _Flight(asyncio.create_task(self._run(key, turn)), turn)
        if not flight.turn.is_set():
            self._queues.setdefault(peer, {})[key] = None
        if not self._busy:
            self._begin_next()
        flight.requests += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.requests -= 1
            if not flight.requests and not flight.turn.is_set():
                self._give_up(key)

    def _give_up(self, key: K) -> None:
        self._flights.pop(key).task.cancel()
        for peer, queue in list(self._queues.items()):
            queue.pop(key, None)
            if not queue:
                del self._queues[peer]

    async def _run(self, key: K, turn: asyncio.Event) -> V:
        await turn.wait()
        try:
            return await self._work(key)
        finally:
            del self._flights[key]
            self._begin_next()

    def _begin_next(self) -> None:
        self._busy = False
        while self._queues and not self._busy:
            peer = next((waiting for waiting in self._queues if waiting != self._served), self._served)
            queue = self._queues.pop(peer)
            key = next(iter(queue))
            del queue[key]
            if queue:
                self._queues[peer] = queue  # behind the other peers
            flight = self._flights.get(key)
            if flight is not None and not flight.turn.is_set():  # not yet run in another peer's turn
                flight.turn.set()
                self._busy, self._served = True, peer
