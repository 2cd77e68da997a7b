"""An HTTP proxy that loses some requests: `python lossy_proxy.py PORT SHARE SEED LOST`.

Of the lost requests, every second one is refused at once, and the others get no reply. Each lost request is one line in
the file LOST."""

from __future__ import annotations

import http.client
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PASSED_ON = ("Accept", "Accept-Encoding", "X-Prometheus-Scrape-Timeout-Seconds")
PASSED_BACK = ("Content-Type", "Content-Encoding")
HOLD_SECONDS = 15.0
"""Longer than any scrape timeout."""


class Losses:
    """Decides at random which requests are lost, and how."""

    def __init__(self, share: float, seed: int, lost: Path) -> None:
        self._share = share
        self._chance = random.Random(seed)  # noqa: S311  # a test that can be repeated
        self._lost = lost
        self._count = 0
        self._lock = threading.Lock()

    def draw(self, url: str) -> str:
        """Return `refused`, `silent`, or an empty text for a request that passes."""
        with self._lock:
            if self._chance.random() >= self._share:
                return ""
            self._count += 1
            fate = "refused" if self._count % 2 else "silent"
            with self._lost.open("a") as file:
                file.write(f"{time.time():.3f} {fate} {url}\n")
            return fate


class Handler(BaseHTTPRequestHandler):
    """Forwards one request."""

    losses: Losses
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def do_GET(self) -> None:
        """Forward the request to its target, unless it is lost."""
        fate = self.losses.draw(self.path)
        if fate:
            time.sleep(HOLD_SECONDS if fate == "silent" else 0.0)
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        request = urllib.request.Request(self.path, headers=headers)
        try:
            with self.opener.open(request, timeout=HOLD_SECONDS) as answer:
                status, found, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        except (OSError, http.client.HTTPException):
            self.send_error(502)
            return
        self.send_response(status)
        for name in PASSED_BACK:
            if name in found:
                self.send_header(name, found[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """Ignores clients that do not wait for the response."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log no error when a client has disconnected."""


def main(port: str, share: str, seed: str, lost: str) -> None:
    """Run until killed."""
    Handler.losses = Losses(float(share), int(seed), Path(lost))
    Server(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
