"""Two Alertmanagers that are peers, for a site that must not lose notifications."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from alerting import Alertmanager, Inbox, alert, posted, to_inbox, why_no_alertmanager
from full import full
from nodes import Node, why_no_nodes
from ports import free_port

WHY_NOT = why_no_alertmanager() or why_no_nodes()
pytestmark = [full, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]

AWAY_SECONDS = 4.0
WAITED_SECONDS = 32.0
"""Longer than a page's group_wait plus the second Alertmanager's wait for the first (15 s)."""


@pytest.mark.timeout(120)
def test_two_alertmanagers_tell_once(tmp_path: Path) -> None:
    """Two peers with equal alerts of two senders send one notification, even after a restart of one."""
    with Node("monitor") as node, Inbox(node) as inbox:
        ports = free_port(), free_port()
        config = to_inbox(inbox)
        pair = [
            Alertmanager(tmp_path / "a", config, node, ports),
            Alertmanager(tmp_path / "b", config, node, (ports[1], ports[0])),
        ]
        labels = [alert("RankDead", "page", "1"), alert("NodeLost", "page", domain="rack-7")]

        def send_for(seconds: float, senders: Sequence[str]) -> None:
            over = time.monotonic() + seconds
            while time.monotonic() < over:
                for sender in senders:
                    for each in pair:
                        each.send([posted(one, f" by {sender}") for one in labels])
                time.sleep(1.0)

        send_for(AWAY_SECONDS, ["first"])
        send_for(WAITED_SECONDS, ["first", "second"])
        pair[0].kill()
        pair[0].start()
        send_for(AWAY_SECONDS, ["second"])
        send_for(WAITED_SECONDS, ["second", "first"])
        groups = [message.body["groupLabels"] for message in inbox.at("/page")]
        assert sorted(groups, key=str) == [{"cluster": "c1", "domain": "rack-7"}, {"cluster": "c1", "job_id": "1"}]
