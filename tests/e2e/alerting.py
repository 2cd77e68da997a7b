"""A real Alertmanager under test, and an inbox for its notifications."""

from __future__ import annotations

import http.server
import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from nodes import Closing, Node, wait_until
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
READY_SECONDS = 15.0
PROGRAMS = ("prometheus-alertmanager", "amtool")


def why_no_alertmanager() -> str | None:
    """Return the reason why there is no Alertmanager (for a skipped test), or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found" if missing else None


class Message(NamedTuple):
    """One POST: its time, its path and its JSON."""

    time: float
    path: str
    body: dict[str, Any]


class Inbox(Closing):
    """A web server on the loopback of ``node`` that accepts any POST; a context manager."""

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
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = node.listen(self.port)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def at(self, path: str) -> list[Message]:
        return [message for message in list(self.messages) if message.path == path]


def to_inbox(inbox: Inbox, ticket_wait: str = "20s") -> str:
    """Return the shipped configuration; each receiver posts JSON to the inbox at a path with the receiver's name.

    Tickets and information wait for ``ticket_wait`` instead of a minute, so that none is pending when a test ends."""
    text = SHIPPED.read_text()
    assert "group_wait: 1m" in text
    config = yaml.safe_load(text.replace("group_wait: 1m", f"group_wait: {ticket_wait}"))
    for receiver in config["receivers"]:
        name = receiver["name"]
        receiver.clear()
        receiver["name"] = name
        if name != "nobody":
            url = f"http://127.0.0.1:{inbox.port}/{name}"
            receiver["webhook_configs"] = [{"url": url, "send_resolved": True}]
    return str(yaml.safe_dump(config))


class Alertmanager:
    """An Alertmanager with ``config`` in ``node``, with its files in ``home``; it ends with the node.

    ``gossip_ports``: its own port and its peer's port for gossip. Without these ports it has no peer."""

    def __init__(self, home: Path, config: str, node: Node, gossip_ports: tuple[int, int] | None = None) -> None:
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
        """Start the server, even after :meth:`kill`; raises AssertionError if it does not get ready."""
        with (self._home / "log").open("a") as log:
            # Only the program itself knows its pid in the node.
            command = ["sh", "-c", f'echo $$ >{self._home / "pid"}; exec "$@"', "sh", "prometheus-alertmanager"]
            self._process = self._node.popen([*command, *self._flags], stdout=log, stderr=subprocess.STDOUT)
        wait_until(self._is_ready, READY_SECONDS, "Alertmanager's readiness")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the server, by default with SIGKILL."""
        self._node.kill(int((self._home / "pid").read_text()), number)
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
        """Return the server's alerts, including silenced and inhibited alerts."""
        reply = self._node.curl(self.port, "/api/v2/alerts")
        assert reply.status == 200, reply
        alerts: list[Mapping[str, Any]] = json.loads(reply.body)
        return alerts


CLUSTER = "c1"
SECRETS = "/etc/prometheus/secrets"
SLOW_GROUPS = "group_wait: 1m"
"""The setting that the tests replace by a shorter wait, because no test waits a minute for a ticket."""


def alert(name: str, severity: str, job_id: str = "", **more: str) -> dict[str, str]:
    """Return the labels of an alert."""
    of_job = {"job_id": job_id} if job_id else {}
    return {"alertname": name, "severity": severity, "cluster": CLUSTER, **of_job, **more}


def posted(labels: Mapping[str, str], said: str = "") -> dict[str, Mapping[str, str]]:
    """Return the alert as Prometheus sends it, with ``said`` in its texts."""
    of_what = labels.get("job_id", labels.get("node", labels.get("path", "")))
    annotations = {
        "summary": f"{labels['alertname']} of {of_what}{said}",
        "description": f"description of {labels['alertname']}{said}",
        "runbook_url": f"https://runbooks/#{labels['alertname'].lower()}",
        "dashboard_url": f"https://grafana/d/rankwatch-job?var-job_id={of_what}",
    }
    return {"labels": labels, "annotations": annotations}


class Post:
    """An Alertmanager with the shipped receivers, which send to the inbox."""

    def __init__(self, directory: Path, node: Node, inbox: Inbox) -> None:
        self.inbox = inbox
        self._node = node
        secrets = directory / "secrets"
        secrets.mkdir()
        (secrets / "pagerduty-routing-key").write_text("key")
        (secrets / "slack-url").write_text(f"http://127.0.0.1:{inbox.port}/slack")
        (secrets / "webhook-token").write_text("token")
        text = SHIPPED.read_text()
        for there, here in {
            SECRETS: str(secrets),
            "127.0.0.1:8080": f"127.0.0.1:{inbox.port}",
            SLOW_GROUPS: "group_wait: 1s",
        }.items():
            assert there in text
            text = text.replace(there, here)
        text += f"\nglobal:\n  pagerduty_url: http://127.0.0.1:{inbox.port}/pagerduty\n"
        self.alertmanager = Alertmanager(directory / "alertmanager", text, node)

    def send(self, *alerts: Mapping[str, str], said: str = "") -> None:
        """Send alerts with these labels; the texts of each alert have its name and end with ``said``."""
        self.alertmanager.send([posted(labels, said) for labels in alerts])

    def first(self, path: str, word: str) -> Message:
        """Wait for the first message with ``word`` on a path."""

        def arrived() -> Message | None:
            return next((message for message in self.inbox.at(path) if word in json.dumps(message.body)), None)

        message: Message = wait_until(arrived, 20.0, f"{word} at {path}")
        return message

    def count(self, path: str, word: str) -> int:
        """Return the number of messages with ``word`` on a path."""
        return sum(word in json.dumps(message.body) for message in self.inbox.at(path))

    def suppressed(self, job_id: str, cluster: str = CLUSTER) -> dict[tuple[str, str], bool]:
        """Wait until all alerts of a job are processed; return the inhibited ones (name, severity)."""

        def judged() -> dict[tuple[str, str], bool] | None:
            wanted = {"job_id": job_id, "cluster": cluster}.items()
            alerts = [alert for alert in self.alertmanager.alerts() if wanted <= alert["labels"].items()]
            if any(alert["status"]["state"] == "unprocessed" for alert in alerts):
                return None
            return {
                (alert["labels"]["alertname"], alert["labels"]["severity"]): bool(alert["status"]["inhibitedBy"])
                for alert in alerts
            }

        states: dict[tuple[str, str], bool] = wait_until(judged, 20.0, "Alertmanager's judgement")
        return states
