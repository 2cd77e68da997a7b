"""A page of metrics that does not change, or is made for each scrape, served on the loopback."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from typing import Any, Self


class FixedPage:
    """A server of the page; a context manager."""

    def __init__(self, body: bytes | Callable[[], bytes]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else body())

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
