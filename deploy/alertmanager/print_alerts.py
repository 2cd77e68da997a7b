#!/usr/bin/env python3
"""Print Alertmanager's notifications, for try-out.yml: print_alerts.py [PORT]."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

PORT = 19095
MAX_BYTES = 1 << 20
"""Limit of a notification; Alertmanager sends a few kilobytes."""
MAX_ALERTS = 8
"""Limit of printed alerts per notification."""


def text(notification: Mapping[str, Any]) -> str:
    """Return the lines for a notification (Alertmanager's webhook, version 4), without control characters."""
    lines = []
    for alert in notification["alerts"][:MAX_ALERTS]:
        labels, notes = alert["labels"], alert["annotations"]
        head = labels.get("severity", "") if alert["status"] == "firing" else "over"
        lines.append(f"{head.upper()}: {labels.get('alertname', '')}: {notes.get('summary', '')}")
        if alert["status"] == "firing":
            details = [*str(notes.get("description", "")).splitlines(), notes.get("runbook_url", "")]
            lines += [f"    {line}" for line in details]
    lines += [f"and {more} more"] if (more := len(notification["alerts"]) - MAX_ALERTS) > 0 else []
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


class Handler(BaseHTTPRequestHandler):
    """Receives one notification at a time."""

    def do_POST(self) -> None:
        """Print a notification; refuse any other request."""
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= MAX_BYTES:
                raise ValueError(size)
            printed = text(json.loads(self.rfile.read(size)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.send_error(400, f"no notification: {type(error).__name__}")
            return
        sys.stdout.write(f"{printed}\n")
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else PORT), Handler).serve_forever()
