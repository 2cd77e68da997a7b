"""A real Alertmanager under test, and the inbox of what it tells."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import yaml
from nodes import Node, wait_until
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
READY_SECONDS = 15.0
PROGRAMS = ("prometheus-alertmanager", "amtool")


def why_no_alertmanager() -> str | None:
    """Return why there is no Alertmanager here (the reason of a skipped test), or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found" if missing else None


class Message(NamedTuple):
    """One POST: when it came, on which path, and its JSON."""

    time: float
    path: str
    body: dict[str, Any]


class Inbox:
    """A web server on the loopback of ``node`` that takes whatever is sent to it; a context manager."""

    def __init__(self, node: Node) -> None:
        self.messages: list[Message] = []
        self.port = free_port()
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.messages.append(Message(time.time(), self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = node.listen(self.port)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def __enter__(self) -> Inbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def at(self, path: str) -> list[Message]:
        """Return what came on a path."""
        return [message for message in list(self.messages) if message.path == path]


def to_inbox(inbox: Inbox) -> str:
    """Return the shipped configuration, with each receiver's messages as JSON at the inbox's path of its name.

    Tickets and information wait for 20 s instead of a minute: none is still to come when a test ends.
    """
    text = SHIPPED.read_text()
    assert "group_wait: 1m" in text
    config = yaml.safe_load(text.replace("group_wait: 1m", "group_wait: 20s"))
    for receiver in config["receivers"]:
        name = receiver["name"]
        receiver.clear()
        receiver["name"] = name
        if name != "nobody":
            url = f"http://127.0.0.1:{inbox.port}/{name}"
            receiver["webhook_configs"] = [{"url": url, "send_resolved": True}]
    return str(yaml.safe_dump(config))


class Alertmanager:
    """A server with ``config`` in ``node``, with its files in ``home``; it ends with the node.

    ``gossip_ports``: where it talks to its peer, and where that is. Without them it is alone.
    """

    def __init__(self, home: Path, config: str, node: Node, gossip_ports: tuple[int, int] | None = None) -> None:
        """Start it; raises AssertionError when it does not get ready."""
        home.mkdir()
        (home / "alertmanager.yml").write_text(config)
        self._home = home
        self._node = node
        self.port = free_port()
        own, peer = (f"127.0.0.1:{port}" for port in gossip_ports) if gossip_ports else ("", "")
        self._flags = (
            f"--config.file={home / 'alertmanager.yml'}",
            f"--storage.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            f"--cluster.listen-address={own}",
            *((f"--cluster.peer={peer}",) if peer else ()),
        )
        self.start()

    def start(self) -> None:
        """Start it, also after :meth:`kill`; raises AssertionError when it does not get ready."""
        with (self._home / "log").open("a") as log:
            # The node's pid of a program is known to itself alone.
            command = ["sh", "-c", f'echo $$ >{self._home / "pid"}; exec "$@"', "sh", "prometheus-alertmanager"]
            self._process = self._node.popen([*command, *self._flags], stdout=log, stderr=subprocess.STDOUT)
        wait_until(self._is_ready, READY_SECONDS, "Alertmanager's readiness")

    def kill(self) -> None:
        """End it without a word."""
        self._node.kill(int((self._home / "pid").read_text()))
        self._process.wait(READY_SECONDS)

    def send(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Post alerts (labels, annotations), as Prometheus does."""
        address = f"http://127.0.0.1:{self.port}/api/v2/alerts"
        header = "Content-Type: application/json"
        done = self._node.run(["curl", "-sSf", "-H", header, "-d", json.dumps(alerts), address])
        assert done.returncode == 0, done.stderr

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Alertmanager left"
        try:
            return self._node.curl(self.port, "/-/ready").status == 200
        except OSError:
            return False

    def alerts(self) -> list[Mapping[str, Any]]:
        """Return the alerts that it has, silenced and inhibited ones too."""
        reply = self._node.curl(self.port, "/api/v2/alerts")
        assert reply.status == 200, reply
        found: list[Mapping[str, Any]] = json.loads(reply.body)
        return found
