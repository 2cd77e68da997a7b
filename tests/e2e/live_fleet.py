"""A fleet of fleets.py in real time: its nodes answer real scrapes, each at a loopback address of its own."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.parse
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from client_metrics import reference
from fleets import WARM_SECONDS, ExitStatus, Fleet, Node

TICK_SECONDS = 0.2
UNANSWERED_SECONDS = 5.0
"""How long a request to a node that is cut off is kept waiting: longer than a scrape of liveness may take."""
RAN_SECONDS = 900.0
"""How long jobs have run already: their deaths are worth a page."""
STEP_SECONDS = 5.0
RANKS_EACH = 2


class LiveFleet(Fleet):
    """``size`` nodes that live for ``seconds`` from now on, named by their addresses; a context manager.

    Seconds, of :meth:`at` and others, are those since it was entered. All events must be known by then.
    """

    def __init__(self, size: int, seconds: int) -> None:
        super().__init__(*(Node(f"127.1.0.{number + 1}", 0.0) for number in range(size)))
        self.seconds = seconds
        self.epoch = 0.0
        """When it was entered."""
        self.targets: list[str] = []
        self.rest: dict[str, bytes] = {}
        """What the job for all but liveness gets, by the node's name; nothing without an entry."""
        self._cut: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._stack = ExitStack()
        for second in range(-WARM_SECONDS, seconds + 1):
            self.at(second, lambda: None)  # agents look at their ranks once a second

    @property
    def now(self) -> float:
        """Seconds since it was entered."""
        return time.time() - self.epoch

    def cut_off(self, node: Node, begin: float, end: float) -> None:
        """Let requests to a node go unanswered from one time to the other."""
        self.at(begin, self._cut.add, node.name)
        self.at(end, self._cut.discard, node.name)

    def write_targets(self, file: Path) -> None:
        """Write the nodes' addresses as file_sd reads them."""
        file.write_text(json.dumps([{"targets": self.targets}]))

    def __enter__(self) -> Self:
        self._events.sort(key=lambda event: event[:2], reverse=True)
        self.epoch = time.time()
        for node in self.nodes:
            node.set_clock_error(self.epoch)
            self._serve(node)
        thread = threading.Thread(target=self._live)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._over.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _live(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._lock:
                self._go_on()

    def _go_on(self) -> None:
        now = self.now
        while self._events and self._events[-1][0] <= now:
            seconds = self._events[-1][0]
            self._advance(seconds)
            while self._events and self._events[-1][0] == seconds:
                self._events.pop()[2]()
        self._advance(now)

    def _advance(self, seconds: float) -> None:
        for node in self.nodes:
            node.advance(seconds)

    def _page(self, node: Node, *, rest: bool) -> bytes | None:
        with self._lock:
            self._go_on()
            if node.name in self._cut:
                return None
            return self.rest.get(node.name, b"") if rest else reference(node.liveness())

    def _serve(self, node: Node) -> None:
        fleet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                page = fleet._page(node, rest="exclude[]" in query)
                if page is None:
                    fleet._over.wait(UNANSWERED_SECONDS)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        server = http.server.ThreadingHTTPServer((node.name, 0), Handler)
        self.targets.append(f"{node.name}:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self._stack.callback(server.server_close)
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown)


class LiveJob:
    """A job with two ranks on each of ``nodes``, which makes progress until a rank leaves."""

    def __init__(self, fleet: LiveFleet, job_id: str, nodes: tuple[Node, ...]) -> None:
        self.job_id = job_id
        self.nodes = nodes
        self.ranks = range(len(nodes) * RANKS_EACH)
        self._fleet = fleet
        self._running: set[int] = set()
        fleet.at(-WARM_SECONDS, self._start, -RAN_SECONDS)
        fleet.every(0, fleet.seconds, STEP_SECONDS, self._step)

    def end(self, seconds: float, rank: int, status: ExitStatus) -> None:
        """Let a rank leave."""
        self._fleet.at(seconds, self._end, rank, status)

    def stand_still(self, seconds: float) -> None:
        """Let no rank make progress from then on."""
        self._fleet.at(seconds, self._running.clear)

    def start_anew(self, seconds: float) -> None:
        """Start all ranks where they were; they must have left."""
        self._fleet.at(seconds, self._start, seconds)

    def _home(self, rank: int) -> Node:
        return self.nodes[rank // RANKS_EACH]

    def _start(self, started_seconds: float) -> None:
        for rank in self.ranks:
            self._home(rank).start(self.job_id, rank, len(self.ranks), self._fleet.epoch + started_seconds)
            self._running.add(rank)

    def _end(self, rank: int, status: ExitStatus) -> None:
        self._running.discard(rank)
        self._home(rank).end(self.job_id, rank, status)

    def _step(self) -> None:
        if len(self._running) == len(self.ranks):
            for rank in self.ranks:
                self._home(rank).progress(self.job_id, rank, len(self.ranks))
