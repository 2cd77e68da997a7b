"""Two jobs of one user at one RAS address, end to end: a connection reaches any process of either."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from agents import Agent
from nodes import wait_until
from ports import free_port
from ras_jobs import POLL_SECONDS, WORLD, RasJob, why_no_ras

WHY_NOT = why_no_ras() or (None if "RANKWATCH_TEST_FULL" in os.environ else "only with RANKWATCH_TEST_FULL=1")
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(150)]

SIZES = {"4771": 8, "4772": 4}
FIRST_REPORTS_SECONDS = 30.0
KEPT_SECONDS = 60.0


def test_two_jobs_on_one_port_are_both_reported_and_never_mixed(tmp_path: Path) -> None:
    """Each of the jobs has its report within half a minute, of its own ranks alone, and keeps it: a rank that dies
    is missing in its own job."""
    port = free_port()
    with (
        RasJob(tmp_path, SIZES["4771"], port, base=84, job_id="4771") as first,
        RasJob(tmp_path, SIZES["4772"], port, base=85, job_id="4772"),
        Agent(tmp_path, {"exporters": {"ras": {"addresses": [f"127.0.0.1:{port}"]}}}) as agent,
    ):

        def shown(state: str) -> dict[str, float]:
            found = agent.samples("rankwatch_communicator_ranks", comm=WORLD, state=state)
            return {each.labels["job_id"]: each.value for each in found if each.labels["job_id"] in SIZES}

        wait_until(lambda: shown("responding") == SIZES, FIRST_REPORTS_SECONDS, "the reports of both")
        until = time.monotonic() + KEPT_SECONDS
        while time.monotonic() < until:
            assert shown("expected") == shown("responding") == SIZES
            time.sleep(0.5)  # between two looks
        first.signal(5)
        wait_until(lambda: shown("missing") == {"4771": 1, "4772": 0}, POLL_SECONDS, "the missing rank")
        assert sum(each.value for each in agent.samples("rankwatch_ras_query_errors_total")) == 0
        assert agent.value("rankwatch_ras_skipped_total", reason="foreign_report") is None
