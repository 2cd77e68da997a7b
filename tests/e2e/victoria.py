"""VictoriaMetrics under test: its server, vmagent and vmalert."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from nodes import Closing, wait_until
from ports import free_port
from prometheus import ROOT

BINARIES = ROOT / ".cache" / "victoria-metrics" / "trixie" / "usr" / "bin"
READY_SECONDS = 20.0
STOP_SECONDS = 10.0


def why_no_victoria() -> str | None:
    """Return the reason why there is no VictoriaMetrics (for a skipped test), or None."""
    return None if (BINARIES / "vmalert").exists() else "no VictoriaMetrics in .cache: scripts/test fetches it"


def dry_run_of_vmalert(rules: list[Path]) -> str:
    """Check rules with vmalert; return its complaints."""
    command = [BINARIES / "vmalert", "-dryRun", "-loggerLevel=ERROR", *(f"-rule={path}" for path in rules)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unit_test(rules_test: Path, scratch: Path) -> str:
    """Run a promtool test file with vmalert's evaluation; return its complaints.

    vmalert's format has another key for expressions, and accepts no paths relative to the file."""
    text = rules_test.read_text().replace("promql_expr_test", "metricsql_expr_test")
    file = scratch / rules_test.name
    file.write_text(text.replace("../rules", str(rules_test.parents[1] / "rules")))
    command = [
        BINARIES / "vmalert-tool",
        "unittest",
        f"--files={file}",
        "-loggerLevel=ERROR",
        "-disableAlertgroupLabel",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return "" if done.returncode == 0 else done.stdout + done.stderr


class Service(Closing):
    """One of the programs, with its log in ``home``; a context manager."""

    def __init__(self, home: Path, program: str, *flags: str) -> None:
        home.mkdir()
        self.port = free_port()
        self._log = (home / "log").open("w")
        address = f"-httpListenAddr=127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [BINARIES / program, address, *flags], stdout=self._log, stderr=self._log, cwd=home
        )
        try:
            wait_until(self._is_ready, READY_SECONDS, f"readiness of {program}")
        except AssertionError:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def get(self, path: str, **parameters: str) -> str:
        """Return a reply; raises OSError."""
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            return str(answer.read().decode())

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"left: {self._process.args!r}"
        try:
            return bool(self.get("/health"))
        except OSError:
            return False


class VictoriaMetrics(Service):
    """The server, which shows samples as soon as it can."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, "victoria-metrics", "-storageDataPath=data", "-search.latencyOffset=0s")

    def query(self, expression: str, at_milliseconds: int | None = None) -> list[dict[str, Any]]:
        """Return the result of an instant query, now or at a time, without cache and with Prometheus's lookback."""
        parameters = {"query": expression, "step": "5m", "nocache": "1"}
        if at_milliseconds is not None:
            parameters["time"] = f"{at_milliseconds / 1000:.3f}"
        try:
            answer = json.loads(self.get("/api/v1/query", **parameters))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression[:200]}: {error.read().decode()[-900:]}") from error
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found
