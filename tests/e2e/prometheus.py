"""A real Prometheus under test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from full import FULL
from nodes import Closing, Node, wait_until
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 20.0
STOP_SECONDS = 10.0
ANSWER_SECONDS = 30.0

_ONE_TARGET = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, external_labels: {{server: "{name}"}}}}
scrape_configs:
  - job_name: rankwatch
    static_configs: [{{targets: ["127.0.0.1:{target_port}"]}}]
"""


def one_target(name: str, port: int) -> str:
    """Return the configuration of a server called ``name`` that scrapes one port every second."""
    return _ONE_TARGET.format(name=name, target_port=port)


def why_no_prometheus() -> str | None:
    """Return the reason why there is no Prometheus (for a skipped test), or None."""
    missing = [tool for tool in ("prometheus", "promtool") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found" if missing else None


def prometheus_binaries() -> list[str]:
    """Return the machine's Prometheus, and with RANKWATCH_TEST_FULL=1 the downloaded newer ones."""
    newer = sorted((ROOT / ".cache" / "prometheus").glob("*/usr/bin/prometheus"))
    return ["prometheus", *(map(str, newer) if FULL else ())]


class Raw(NamedTuple):
    """One series with its raw samples: its labels, and (milliseconds since the epoch, value)."""

    labels: dict[str, str]
    samples: list[tuple[int, float]]


class Prometheus(Closing):
    """A server with ``config``, of ``binary``, on this machine or in ``node``, with its files in ``home``.

    A context manager. ``more``: further flags. It listens at ``port``, or at a free port."""

    def __init__(
        self,
        home: Path,
        config: str,
        binary: str = "prometheus",
        *,
        node: Node | None = None,
        port: int | None = None,
        more: tuple[str, ...] = (),
    ) -> None:
        home.mkdir()
        self._config = home / "prometheus.yml"
        self._config.write_text(config)
        self._node = node
        self._pid_path = home / "pid"
        self.port = port or free_port()
        self._log = (home / "log").open("w")
        self._command = (
            binary,
            f"--config.file={home / 'prometheus.yml'}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            *more,
        )
        self.start()

    def start(self) -> None:
        """Start the server, even after :meth:`kill`; raises AssertionError if it does not get ready."""
        # Only the program itself knows its pid in the node.
        command = ["sh", "-c", f'echo $$ >{self._pid_path}; exec "$@"', "sh", *self._command]
        popen = self._node.popen if self._node else subprocess.Popen
        self._process = popen(command, stdout=self._log, stderr=self._log)
        try:
            wait_until(self._is_ready, READY_SECONDS, "Prometheus' readiness")
        except AssertionError:
            self.close()
            raise

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def reload(self) -> None:
        """Reload configuration and rules, and wait until they are in use; raises AssertionError."""
        reloaded = "prometheus_config_last_reload_success_timestamp_seconds"

        def reloaded_at() -> float:
            match = re.search(rf"^{reloaded} (\S+)$", self._get("/metrics"), re.MULTILINE)
            return float(match[1]) if match else 0.0

        before = reloaded_at()
        self._signal(signal.SIGHUP)
        wait_until(lambda: reloaded_at() > before, READY_SECONDS, "the new configuration")

    def rest(self) -> None:
        """Stop all scrapes and evaluations, so that the server only answers queries."""
        self._config.write_text("{}")
        self.reload()

    @property
    def pid(self) -> int:
        """Return the server's pid, unless it is in a node."""
        return self._process.pid

    def query(self, expression: str, at_milliseconds: int | None = None) -> list[dict[str, Any]]:
        """Return the result of an instant query, now or at a time."""
        parameters = {"query": expression}
        if at_milliseconds is not None:
            parameters["time"] = f"{at_milliseconds / 1000:.3f}"
        answer = json.loads(self._get("/api/v1/query?" + urllib.parse.urlencode(parameters)))
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def query_range(
        self, expression: str, seconds: int, step_seconds: int, end: float | None = None
    ) -> list[dict[str, Any]]:
        """Return the result of a query over ``seconds`` until ``end`` (since the epoch), or until now."""
        now = time.time() if end is None else end
        times = {"start": f"{now - seconds:.3f}", "end": f"{now:.3f}", "step": str(step_seconds)}
        answer = json.loads(self._get("/api/v1/query_range?" + urllib.parse.urlencode({"query": expression, **times})))
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return the values of a label in some series."""
        answer = json.loads(self._get(f"/api/v1/label/{label}/values?" + urllib.parse.urlencode({"match[]": selector})))
        found: list[str] = answer["data"]
        return found

    def value(self, expression: str) -> float | None:
        """Return the value of an expression with at most one series."""
        series = self.query(expression)
        assert len(series) <= 1, series
        return float(series[0]["value"][1]) if series else None

    def raw(self, selector: str) -> list[Raw]:
        """Return the raw samples of some series in the last ten minutes."""
        return [
            Raw(series["metric"], [(round(float(time) * 1000), float(value)) for time, value in series["values"]])
            for series in self.query(f"{selector}[10m]")
        ]

    def increase(self, series: Raw) -> float:
        """Return increase() over exactly the time from the first to the last sample of a series.

        Since Prometheus 3.0 a range excludes a sample at its start, so the query covers one millisecond more. The
        extrapolation over this millisecond is subtracted; a counter that began at 0 has no extrapolation."""
        first, last = series.samples[0][0], series.samples[-1][0]
        version = json.loads(self._get("/api/v1/status/buildinfo"))["data"]["version"]
        more = 1 if int(version.partition(".")[0]) >= 3 else 0
        labels = ",".join(f'{name}="{value}"' for name, value in series.labels.items() if name != "__name__")
        selector = f"{series.labels['__name__']}{{{labels}}}"
        [result] = self.query(f"increase({selector}[{last - first + more}ms])", last)
        extrapolated = more if series.samples[0][1] > 0 else 0
        return float(result["value"][1]) * (last - first) / (last - first + extrapolated)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        pid = int(self._pid_path.read_text())
        if self._node is not None:
            self._node.kill(pid, number)
        else:
            os.kill(pid, number)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus left"
        try:
            return bool(self._get("/-/ready"))
        except OSError:
            return False

    def _get(self, path: str) -> str:
        if self._node is not None:
            reply = self._node.curl(self.port, path, timeout=10)
            if reply.status != 200:
                raise OSError(reply)
            return reply.body
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())
