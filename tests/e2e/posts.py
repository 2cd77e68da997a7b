"""An Alertmanager with the shipped receivers, and what it is sent and tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from alerting import SHIPPED, Alertmanager, Inbox, Message
from nodes import Node, wait_until

CLUSTER = "c1"
SECRETS = "/etc/prometheus/secrets"
SLOW_GROUPS = "group_wait: 1m"
"""No test waits a minute for a ticket."""


def alert(name: str, severity: str, job_id: str = "", **more: str) -> dict[str, str]:
    """Return the labels of an alert."""
    of_job = {"job_id": job_id} if job_id else {}
    return {"alertname": name, "severity": severity, "cluster": CLUSTER, **of_job, **more}


def told(labels: Mapping[str, str], said: str = "") -> dict[str, Mapping[str, str]]:
    """Return the alert as Prometheus sends it; it says ``said`` of itself."""
    of_what = labels.get("job_id", labels.get("node", labels.get("path", "")))
    annotations = {
        "summary": f"{labels['alertname']} of {of_what}{said}",
        "description": f"description of {labels['alertname']}{said}",
        "runbook_url": f"https://runbooks/#{labels['alertname'].lower()}",
        "dashboard_url": f"https://grafana/d/rankwatch-job?var-job_id={of_what}",
    }
    return {"labels": labels, "annotations": annotations}


class Post:
    """An Alertmanager with the shipped receivers, whose services are the inbox."""

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
        """Send alerts with these labels, each with a summary and a description that name them, and say ``said``."""
        self.alertmanager.send([told(labels, said) for labels in alerts])

    def first(self, path: str, word: str) -> Message:
        """Wait for the first message on a path that holds ``word``."""

        def found() -> Message | None:
            return next((each for each in self.inbox.at(path) if word in json.dumps(each.body)), None)

        message: Message = wait_until(found, 20.0, f"{word} at {path}")
        return message

    def count(self, path: str, word: str) -> int:
        """Return how many messages on a path hold ``word``."""
        return sum(word in json.dumps(each.body) for each in self.inbox.at(path))

    def suppressed(self, job_id: str, cluster: str = CLUSTER) -> dict[tuple[str, str], bool]:
        """Wait until all alerts of a job are judged; return which of them (name, severity) are inhibited."""

        def judged() -> dict[tuple[str, str], bool] | None:
            wanted = {"job_id": job_id, "cluster": cluster}.items()
            alerts = [each for each in self.alertmanager.alerts() if wanted <= each["labels"].items()]
            if any(each["status"]["state"] == "unprocessed" for each in alerts):
                return None
            return {
                (each["labels"]["alertname"], each["labels"]["severity"]): bool(each["status"]["inhibitedBy"])
                for each in alerts
            }

        states: dict[tuple[str, str], bool] = wait_until(judged, 20.0, "Alertmanager's judgement")
        return states
