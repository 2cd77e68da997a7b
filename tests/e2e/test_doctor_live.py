"""The doctor with a real agent and a real Prometheus: healthy, and with one fault after another."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Agent
from jobs import ROOT
from nodes import wait_until
from ports import free_port
from prometheus import Prometheus, one_target, why_no_prometheus
from rules import build_rules, prometheus_config

pytestmark = [
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(180),
]


def doctor(agent: Agent, *more: str) -> dict[str, str]:
    """Return the findings, by check."""
    command = [sys.executable, "-m", "agent", "doctor", "--json", *more]
    command += ["--web.listen-address", f"127.0.0.1:{agent.port}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
    found = {finding["check"]: finding["text"] for finding in json.loads(done.stdout) if finding["level"] == "wrong"}
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def test_an_installation(tmp_path: Path) -> None:
    """`doctor` finds nothing in a good installation, and names each fault: jobs, rules, a directory, a wrong key."""
    records, targets = tmp_path / "records", tmp_path / "targets"
    for path in (records, targets):
        path.mkdir()
    records.chmod(0o1777)
    rules = build_rules(tmp_path, {})
    with Agent(tmp_path, {"exporters": {"inspector": {"paths": [str(records)]}}}) as agent:
        (targets / "n.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        config = prometheus_config(targets, rules, free_port())
        with Prometheus(tmp_path / "whole", config) as prometheus:
            wait_until(lambda: prometheus.value("count(up == 1)") == 2, 40, "both jobs")
            assert doctor(agent, "--prometheus", f"http://127.0.0.1:{prometheus.port}") == {}
        with Prometheus(tmp_path / "part", one_target("x", agent.port)) as prometheus:
            wait_until(lambda: prometheus.value("count(up == 1)") == 1, 20, "its job")
            found = doctor(agent, "--prometheus", f"http://127.0.0.1:{prometheus.port}")
        assert set(found) == {"prometheus", "rules", "alertmanager"}
        assert "rankwatch-liveness does not scrape" in found["prometheus"]
        records.rmdir()
        assert list(doctor(agent)) == ["inspector"]
        agent.config_path.write_text("wbe: {}\n")
        agent.signal(signal.SIGHUP)
        wait_until(lambda: "unknown key" in doctor(agent).get("configuration", ""), 20, "the refusal")
    assert list(doctor(agent, "--config.file", str(agent.config_path))) == ["agent", "configuration"]
