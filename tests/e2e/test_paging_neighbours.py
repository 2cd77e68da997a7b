"""Two users on one node, and who is told: what the one does to the other's job wakes nobody, what comes to it does."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alerting import Alertmanager, Inbox, to_inbox
from neighbours import JOB, MALLORY, RANKS, SharedNode, end, shared_node
from nodes import wait_until, why_no_nodes
from paging import why_no_pages
from prometheus import Prometheus
from watches import build_rules, prometheus_config

WHY_NOT = why_no_nodes() or why_no_pages()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(240),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found"),
]
YOUNG = {"page_lived": "long|short"}
QUIET_SECONDS = 35.0
"""Longer than a crash takes to be told."""
TOLD_SECONDS = 60.0


@pytest.fixture
def shared() -> Iterator[SharedNode]:
    """A node with two users."""
    with shared_node() as place:
        yield place


def test_a_neighbour_wakes_nobody_and_a_death_one(shared: SharedNode, tmp_path: Path) -> None:
    """Another user's process that joins the job and crashes is no page of it; a crash of its own rank is one."""

    def told(inbox: Inbox) -> list[dict[str, Any]]:
        found = [alert for message in inbox.at("/page") for alert in message.body["alerts"]]
        return [alert for alert in found if alert["labels"].get("job_id") == JOB]

    with shared.agent() as agent, shared.victim() as victim, Inbox(shared.node) as inbox:
        (tmp_path / "agent.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        alertmanager = Alertmanager(tmp_path / "alertmanager", to_inbox(inbox), shared.node)
        config = prometheus_config(tmp_path, build_rules(tmp_path, YOUNG, {}), alertmanager.port)
        with Prometheus(tmp_path / "prometheus", config, node=shared.node) as prometheus:
            up = f'count(rankwatch_rank_up{{job_id="{JOB}"}} == 1)'
            wait_until(lambda: prometheus.value(up) == RANKS, 30.0, "the victim's ranks in Prometheus")
            forger = shared.rank(MALLORY, SLURM_JOB_ID=JOB, RANK="9", WORLD_SIZE="16")
            agent.wait_for("rankwatch_rank_up", 1.0, job_id=f"{JOB}-u{MALLORY}", rank="9")
            end(forger)
            quiet_until = time.monotonic() + QUIET_SECONDS
            wait_until(lambda: time.monotonic() > quiet_until, QUIET_SECONDS + 1.0, "what would have come")
            assert told(inbox) == []

            victim.kill(victim.pid(1), signal.SIGSEGV)
            wait_until(lambda: len(told(inbox)) == 1, TOLD_SECONDS, "a page")
            [alert] = told(inbox)
            assert alert["labels"]["alertname"] == "RankDead"
            assert "rank 1 on 127.0.0.1 crashed; 3 ranks still run" in alert["annotations"]["summary"]
