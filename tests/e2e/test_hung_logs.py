"""A job's logs on two real file systems; one of them hangs while the agent reads."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

import pytest
from full import full
from machines import Machine, alive
from nodes import wait_until
from slow_files import hung_directory

from agent.tail.hang_guard import HUNG_SECONDS

RANKS = 2
EVENTS = "rankwatch_job_log_events_total"


@full
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount")
def test_a_hung_file_system_costs_its_own_logs_alone(tmp_path: Path) -> None:
    """After some seconds the agent reads the other logs, each line once. The agent stops while the mount hangs."""
    machine = Machine(tmp_path)
    machine.job_id = str(uuid.uuid4().int % 10**9)
    near, far = tmp_path / "logs/near", tmp_path / "logs/far"
    for folder in (near, far):
        folder.mkdir(parents=True)
    log = near / f"{machine.job_id}.log"
    log.write_text("[rank0]: ValueError: one\n")
    sections = {"job_log": {"enabled": True, "paths": [f"{tmp_path}/logs/*/%j.log"]}}
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(machine.job("--ranks", str(RANKS)))
        agent = stack.enter_context(machine.agent(job, exporters=sections))
        agent.wait_for_states(alive(RANKS))
        line = {"rank": "0", "category": "program_error"}
        agent.wait_for(EVENTS, 1, seconds=20.0, **line)
        try:
            stack.enter_context(hung_directory(far))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        wait_until(lambda: "starts again" in agent.log(), HUNG_SECONDS + 30.0, "a new run")
        with log.open("a") as file:
            file.write("[rank1]: ValueError: two\n[rank0]: ValueError: three\n")
        agent.wait_for(EVENTS, 2, seconds=20.0, **line)
        assert agent.value("rankwatch_exporter_up", exporter="job_log") == 1
        assert f"{far} is not read" in agent.get("/").body
        assert agent.log().count("starts again") == 1
        assert agent.stop() == 0
