"""The web server at its addresses, and how it moves to others."""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.web.listen import ListenAddress, open_listeners, open_local_listener, parse_listen_address
from agent.web.messages import HttpRequest, HttpResponse
from agent.web.secured import Terms
from agent.web.server import Handler, WebServer

STOP_SECONDS = 5.0
"""How long answers under way may take once their server stops."""


class Serving:
    """Serves ``handler`` at its addresses, on the ``terms`` of the moment. A move is prepared, then committed or taken
    back. ``inherited``: listening sockets that systemd has opened; there is no move from them. ``local_path``: of a
    socket for commands of root's and the agent's own user, on no terms.
    """

    def __init__(
        self,
        handler: Handler,
        log: Logger,
        terms: Callable[[], Terms] = Terms,
        inherited: Sequence[socket.socket] = (),
        local_path: Path | None = None,
    ) -> None:
        self._local_path = local_path
        self._thread = OwnThread("web-listen")
        self._handler = handler
        self._log = log
        self._terms = terms
        self._inherited = inherited
        self.addresses: tuple[str, ...] = ()
        self._server = WebServer(self._answer, log, tls=lambda: terms().tls)
        self._next: tuple[list[socket.socket], tuple[str, ...]] | None = None
        self._deaf = False
        self._local = WebServer(handler, log)

    @property
    def responses(self) -> Counter[int]:
        """Return how often each status was answered."""
        return self._server.responses + self._local.responses

    async def start(self, addresses: Sequence[str]) -> None:
        """Listen at ``addresses`` (as in the configuration); OSError, with the address in its text, if that cannot be.

        Where the local socket cannot be made, that is logged.
        """
        self.addresses = tuple(map(_shown, self._inherited)) or tuple(addresses)
        await self._server.listen(self._inherited or await self._opened(self.addresses))
        if self._local_path is not None:
            path = self._local_path
            try:
                await self._local.listen([await self._thread.call(lambda: open_local_listener(path))])
            except OSError as error:
                self._log.warning("no local socket: rankwatch status needs an address", error=error)

    async def prepare(self, addresses: Sequence[str]) -> None:
        """Open ``addresses`` too; OSError, and all is as before, if that cannot be.

        Where a new address holds an old one (`:9` and `127.0.0.1:9`) the old ones stop listening first. Connections
        under way go on.
        """
        wanted = tuple(addresses)
        if wanted == self.addresses or self._inherited:
            return
        try:
            self._next = await self._opened(wanted), wanted
        except OSError as error:
            own = {parse_listen_address(each).port for each in self.addresses}
            if error.errno != errno.EADDRINUSE or own.isdisjoint(parse_listen_address(each).port for each in wanted):
                raise
            self._server.stop_listening()
            self._deaf = True
            try:
                self._next = await self._opened(wanted), wanted
            except OSError:
                await self.take_back()
                raise

    async def commit(self) -> None:
        """Serve at the new addresses alone."""
        if self._next is not None:
            self._server.stop_listening()
            (sockets, self.addresses), self._next, self._deaf = self._next, None, False
            await self._server.listen(sockets)

    async def take_back(self) -> None:
        """Serve at the old addresses alone: open the listeners again, if they were closed."""
        for opened in self._next[0] if self._next is not None else ():
            opened.close()
        self._next = None
        if self._deaf:
            self._deaf = False
            try:
                await self._server.listen(await self._opened(self.addresses))
            except OSError as error:  # taken by another program in between
                self._log.error("the old address cannot be listened to again: restart the agent", error=error)

    async def stop(self) -> None:
        """Stop listening, and let answers under way end within STOP_SECONDS."""
        await asyncio.gather(self._server.stop(STOP_SECONDS), self._local.stop(STOP_SECONDS))
        if self._local_path is not None:
            path = self._local_path
            await self._thread.call(lambda: path.unlink(missing_ok=True))
        self._thread.stop()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        secured = self._terms().secured
        refusal = await secured.refuse(request)
        is_private = request.scheme == "https" and secured.asks_for_passwords
        return refusal or secured.finish(await self._handler(replace(request, is_private=is_private)))

    async def _opened(self, addresses: Sequence[str]) -> list[socket.socket]:
        """Return listening sockets at all of them; OSError, and none, if one cannot be had."""
        return await self._thread.call(lambda: open_listeners(*map(parse_listen_address, addresses)))


def _shown(opened: socket.socket) -> str:
    """Where a socket listens, as in the configuration; the path of one of the node's own."""
    name = opened.getsockname()
    return str(ListenAddress(*name[:2])) if isinstance(name, tuple) else str(name)
