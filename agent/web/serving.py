"""Run the web server at its addresses."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.web.listen import ListenAddress, open_listeners, open_local_listener, parse_listen_address
from agent.web.messages import HttpRequest, HttpResponse
from agent.web.secured import Secured
from agent.web.server import Handler, WebServer

STOP_SECONDS = 5.0


class Serving:
    """Serves ``handler`` at its addresses with the current ``terms``, the requirements for clients.

    ``inherited``: listening sockets from systemd. ``local_path``: path of a socket for commands on this node, which
    need no password.
    """

    def __init__(
        self,
        handler: Handler,
        log: Logger,
        terms: Callable[[], Secured] = Secured,
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
        self._local = WebServer(handler, log)

    async def start(self, addresses: Sequence[str]) -> None:
        """Listen at ``addresses`` (as in the configuration); OSError names the failing address.

        A failure of the local socket is only logged.
        """
        self.addresses = tuple(map(_shown, self._inherited)) or tuple(addresses)
        sockets = self._inherited or await self._thread.call(
            lambda: open_listeners(*map(parse_listen_address, addresses))
        )
        await self._server.listen(sockets)
        if self._local_path is not None:
            path = self._local_path
            try:
                await self._local.listen([await self._thread.call(lambda: open_local_listener(path))])
            except OSError as error:
                self._log.warning("no local socket: rankwatch status needs an address", error=error)

    async def stop(self) -> None:
        """Stop listening; wait at most STOP_SECONDS for running replies."""
        await asyncio.gather(self._server.stop(STOP_SECONDS), self._local.stop(STOP_SECONDS))
        if self._local_path is not None:
            with suppress(OSError):
                await self._thread.call(self._local_path.unlink)
        self._thread.stop()

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        secured = self._terms()
        refusal = await secured.refuse(request)
        is_private = request.scheme == "https" and secured.passwords is not None
        return refusal or secured.finish(await self._handler(replace(request, is_private=is_private)))


def _shown(opened: socket.socket) -> str:
    """Return a socket's address as in the configuration, or its path."""
    name = opened.getsockname()
    return str(ListenAddress(*name[:2])) if isinstance(name, tuple) else str(name)
