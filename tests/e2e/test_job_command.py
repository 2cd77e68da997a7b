"""`rankwatch job` on a real Prometheus with the shipped rules: a live job on one node, before and after a death."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from machines import Machine, alive
from nodes import wait_until
from ports import free_port
from prometheus import ROOT, Prometheus, why_no_prometheus
from shipped import build_rules, prometheus_config

pytestmark = [
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(180),
]


def asked(job_id: str, port: int) -> tuple[int, str]:
    """Exit status and answer."""
    command = [sys.executable, "-m", "agent", "job", job_id, "--prometheus", f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_job_before_and_after_a_death(tmp_path: Path) -> None:
    """All is well with status 0; after a SIGKILL the rank is the first to go, with its pid, and the status is 1."""
    targets = tmp_path / "targets"
    targets.mkdir()
    rules = build_rules(tmp_path, {})
    machine = Machine(tmp_path)
    with machine.job("--ranks", "4") as job, machine.agent(job) as agent:
        agent.wait_for_states(alive(4))
        job_id = agent.samples("rankwatch_job_info")[0].labels["job_id"]
        (targets / "n.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        with Prometheus(tmp_path / "prometheus", prometheus_config(targets, rules, free_port())) as prometheus:
            wait_until(lambda: asked(job_id, prometheus.port)[0] == 0, 60, "the job")
            status, text = asked(job_id, prometheus.port)
            assert "now: 4 alive" in text
            assert "4 ranks without trouble" in text
            pid = job.pid(2)
            job.kill(pid)
            wait_until(lambda: "first to go: rank 2 " in asked(job_id, prometheus.port)[1], 60, "the death")
            status, text = asked(job_id, prometheus.port)
            assert status == 1
            assert f"2     127.0.0.1  dead   {pid}" in text
            assert "killed (SIGKILL)" in text
