"""Which process a connection has reached, before anything is said on it."""

from __future__ import annotations

import asyncio

from agent.sdk.exporter import OwnThread
from agent.sdk.ranks import ProcessKey
from exporters.ras.local.listeners import ListenerSearch, Site
from exporters.ras.protocol.client import Endpoint

FIRST_PAUSE_SECONDS = 0.002
ACCEPT_SECONDS = 1.0
"""For a process to accept a connection: a RAS thread does so at once, a stopped process never."""


class Reach:
    """Tells, by the agent's own tables, which process has a connection's other end; ``thread`` reads them."""

    def __init__(self, thread: OwnThread, search: ListenerSearch) -> None:
        self._thread = thread
        self._search = search

    async def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        """Return the process of ``site`` that accepted the connection from ``client``; None when none did in time."""
        now = asyncio.get_running_loop().time
        until, pause = now() + ACCEPT_SECONDS, FIRST_PAUSE_SECONDS
        while (found := await self._look(site, server, client)) is None and now() < until:
            await asyncio.sleep(pause)
            pause *= 2
        return found

    async def _look(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        return await self._thread.call(lambda: self._search.server_of(site, server, client))
