"""The web server at its address, and how it moves to another one."""

from __future__ import annotations

import errno

from agent.core.log import Logger
from agent.web.listen import parse_listen_address
from agent.web.server import Handler, WebServer

STOP_SECONDS = 5.0
"""How long answers under way may take once their server stops."""


class Serving:
    """Serves ``handler`` at one address. A move is prepared, then committed or taken back."""

    def __init__(self, handler: Handler, log: Logger) -> None:
        self._handler = handler
        self._log = log
        self.address = ""
        self._server = WebServer(handler, log)
        self._next: tuple[WebServer, str] | None = None
        self._deaf = False
        self.stats = self._server.stats

    async def start(self, address: str) -> None:
        """Listen at ``address`` (as in the configuration); OSError, with the address in its text, if that cannot be."""
        await self._server.start(parse_listen_address(address))
        self.address = address

    async def prepare(self, address: str) -> None:
        """Listen at ``address`` too; OSError, and all is as before, if that cannot be.

        Where the new address holds the old one (`:9` and `127.0.0.1:9`) the old one stops listening first, and
        connections under way go on.
        """
        if address == self.address:
            return
        server = WebServer(self._handler, self._log, stats=self.stats)  # the counters go on
        try:
            await self._open(server, address)
        except OSError:
            await self._listen_again()
            raise
        self._next = server, address

    async def commit(self) -> None:
        """Serve at the new address alone."""
        if self._next is None:
            return
        old, (self._server, self.address) = self._server, self._next
        self._next, self._deaf = None, False
        await old.stop(STOP_SECONDS)

    async def take_back(self) -> None:
        """Serve at the old address alone."""
        if self._next is not None:
            (server, _), self._next = self._next, None
            await server.stop(0.0)
        await self._listen_again()

    async def stop(self) -> None:
        """Stop listening, and let answers under way end within STOP_SECONDS."""
        await self._server.stop(STOP_SECONDS)

    async def _open(self, server: WebServer, address: str) -> None:
        wanted, own = parse_listen_address(address), parse_listen_address(self.address)
        try:
            await server.start(wanted)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or wanted.port != own.port:
                raise
            self._server.stop_listening()
            self._deaf = True
            await server.start(wanted)

    async def _listen_again(self) -> None:
        """Open the old listeners again, if they were closed."""
        if not self._deaf:
            return
        self._deaf = False
        try:
            await self._server.start(parse_listen_address(self.address))
        except OSError as error:  # taken by another program in between
            self._log.error("the old address cannot be listened to again: restart the agent", error=error)
