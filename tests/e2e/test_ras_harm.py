"""Queries do not disturb the job, end to end: traffic between agent and RAS, and CPU time of NVIDIA's thread."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from agents import Agent
from full import full
from nodes import wait_until
from ports import free_port
from ras_jobs import RasJob, why_no_ras
from wire import Connection, Wire, ras_thread_seconds, why_no_wire

from exporters.ras.query.policy import JITTER, MIN_INTERVAL_SECONDS

WHY_NOT = why_no_ras() or why_no_wire()
pytestmark = [full, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(120)]

JOB = "4761"
STOPPED = 7
SILENT_SECONDS = 5.0
"""RAS stops waiting for a stopped process after this time, at its default timeouts."""
REST_SECONDS = MIN_INTERVAL_SECONDS * (1.0 - JITTER) - 0.8
"""Time from the end of a query to the SIGSTOP: the next query starts soon after it, and waits long."""
FAST_SECONDS = 0.2
SLOW_SECONDS = 12.0
"""Longer than the duration of a query that waits."""
QUERY_SECONDS = 25.0
TRIES = 4
IDLE_SHARE = 0.1
"""Share of a core that all RAS threads together never exceed while they are queried and wait."""
ALLOWED = re.compile(r"CLIENT PROTOCOL 2|TIMEOUT 5|SET FORMAT json|STATUS|MONITOR all")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RasJob]:
    """Provide eight ranks on two fictional nodes, all on one port of this machine."""
    with RasJob(tmp_path, 8, free_port(), base=83, job_id=JOB) as job:
        yield job


def seconds_of(job: RasJob) -> float:
    """Return the CPU time of all RAS threads."""
    return sum(ras_thread_seconds(process.pid) for process in job.processes)


def slow_query(job: RasJob, wire: Wire) -> Connection:
    """Stop a process shortly before the next query is due, and return this query once it is delayed.

    If the stopped process itself accepted the agent's connection, resume it and try again."""
    for _ in range(TRIES):
        asked = len(wire.asked())
        wait_until(partial(has_rested, wire, asked), QUERY_SECONDS + REST_SECONDS, "a whole query, and the time after")
        job.signal(STOPPED, signal.SIGSTOP)
        until = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < until:
            if is_held_up(wire):
                return wire.asked()[-1]
            time.sleep(0.005)
        job.signal(STOPPED, signal.SIGCONT)
    raise AssertionError("no query")


def has_rested(wire: Wire, asked: int) -> bool:
    """Return True if a query after the first ``asked`` has ended and the next query is due soon."""
    if len(wire.asked()) <= asked:
        return False
    ended_at = wire.asked()[-1].server_ended_at
    return ended_at is not None and time.monotonic() > ended_at + REST_SECONDS


def is_held_up(wire: Wire) -> bool:
    """Return whether a query is in progress, and has taken longer than an undisturbed one."""
    until = time.monotonic() + FAST_SECONDS
    while wire.in_flight():
        if time.monotonic() > until:
            return True
        time.sleep(0.005)
    return False


def asked_one_after_the_other_to_the_end(wire: Wire) -> bool:
    """Return whether each report was read to its end, and each query began after the previous report's end."""
    asked = wire.asked()
    ends = [each.server_ended_at or float("inf") for each in asked]
    in_turn = all(end <= (after.asked_at or 0.0) for end, (_, after) in zip(ends, pairwise(asked), strict=False))
    return in_turn and all(end <= (each.client_ended_at or 0.0) for end, each in zip(ends, asked, strict=True))


def test_a_slow_query_is_read_to_its_end(job: RasJob, tmp_path: Path) -> None:
    """An agent waits for a query to a stopped process; no thread spins, and the agent sends only allowed commands."""
    ras = {"addresses": [f"127.0.0.1:{job.port}"]}
    with Wire(job.port) as wire, Agent(tmp_path, {"exporters": {"ras": ras}}, job_id=JOB) as agent:
        wait_until(lambda: wire.asked() and not wire.in_flight(), QUERY_SECONDS, "a first query")
        spent, began = seconds_of(job), time.monotonic()
        slow = slow_query(job, wire)
        assert agent.stop(SLOW_SECONDS) == 0
        wait_until(lambda: slow.client_ended_at is not None, SLOW_SECONDS, "the end of the connection")
        assert slow.asked_at is not None
        assert slow.server_ended_at is not None
        assert slow.server_ended_at - slow.asked_at > FAST_SECONDS  # part of RAS's wait can have passed before
        assert asked_one_after_the_other_to_the_end(wire)
        assert seconds_of(job) - spent < IDLE_SHARE * (time.monotonic() - began)
        said = {line for connection in wire.connections for line in connection.lines}
        assert {line for line in said if not ALLOWED.fullmatch(line)} == set()
        assert "STATUS" in said
