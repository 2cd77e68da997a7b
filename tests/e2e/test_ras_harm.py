"""Asking does the job no harm, end to end: what passes between agent and RAS, and what it costs NVIDIA's thread."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from agents import Agent, free_port
from nodes import wait_until
from ras_jobs import RasJob, why_no_ras
from wire import Wire, ras_thread_seconds, why_no_wire

WHY_NOT = why_no_ras() or why_no_wire()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(120)]
FULL = pytest.mark.skipif("RANKWATCH_TEST_FULL" not in os.environ, reason="only with RANKWATCH_TEST_FULL=1")

JOB = "4761"
SILENT_SECONDS = 2.5
"""After which RAS waits no longer for a stopped process, at the factor below."""
SLOW = {"NCCL_RAS_TIMEOUT_FACTOR": "0.5"}
STOPPED = 7
STOP_SECONDS = 1.0
"""How long the process is stopped at a time until a query begins, which then has the rest of the time to wait."""
FAST_SECONDS = 0.2
QUERY_SECONDS = 25.0
IDLE_SHARE = 0.1
"""Of a core: more than this the RAS threads do not need, all together, while they are asked and wait."""
SPIN_SHARE = 0.5
"""Of a core: at least this much one uses that spins."""
ALLOWED = re.compile(r"CLIENT PROTOCOL 2|TIMEOUT 5|SET FORMAT json|STATUS|MONITOR all")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RasJob]:
    """Eight ranks on two made-up nodes, all on one port of this machine."""
    with RasJob(tmp_path, 8, free_port(), base=83, env=SLOW, job_id=JOB) as job:
        yield job


def seconds_of(job: RasJob) -> float:
    """Return the CPU time that all RAS threads have used."""
    return sum(ras_thread_seconds(process.pid) for process in job.processes)


def stop_one_amid_a_query(job: RasJob, wire: Wire) -> None:
    """Stop a process and have it go on, again and again, until a query begins while it is stopped, and leave it so."""
    until = time.monotonic() + QUERY_SECONDS
    while time.monotonic() < until:
        job.signal(STOPPED, signal.SIGSTOP)
        stopped_at = time.monotonic()
        while time.monotonic() < stopped_at + STOP_SECONDS:
            if is_held_up(wire):
                return
            time.sleep(0.005)
        job.signal(STOPPED, signal.SIGCONT)
        wait_until(lambda: wire.in_flight() == 0, 5.0, "the end of a query that nothing holds up")
    raise AssertionError("no query")


def is_held_up(wire: Wire) -> bool:
    """Return whether a query is under way, and still is after longer than one that nothing holds up takes."""
    until = time.monotonic() + FAST_SECONDS
    while wire.in_flight():
        if time.monotonic() > until:
            return True
        time.sleep(0.005)
    return False


def asked_one_after_the_other_to_the_end(wire: Wire) -> bool:
    """Return whether each report was read to its end, and none asked for before the one before had ended."""
    asked = wire.asked()
    ends = [each.server_ended_at or float("inf") for each in asked]
    in_turn = all(end <= (after.asked_at or 0.0) for end, (_, after) in zip(ends, pairwise(asked), strict=False))
    return in_turn and all(end <= (each.client_ended_at or 0.0) for end, each in zip(ends, asked, strict=True))


@FULL
@pytest.mark.parametrize("how", ["stop", "reload"])
def test_an_agent_that_leaves_amid_a_slow_query_reads_it_to_its_end(job: RasJob, tmp_path: Path, how: str) -> None:
    """Stopped or reloaded while a query waits for a stopped process, the agent waits too: no thread spins, no second
    query begins before, and nothing but what is allowed was ever said."""
    ras = {"addresses": [f"127.0.0.1:{job.port}"]}
    with Wire(job.port) as wire, Agent(tmp_path, {"exporters": {"ras": ras}}, job_id=JOB) as agent:
        wait_until(lambda: wire.asked() and not wire.in_flight(), QUERY_SECONDS, "a first query")
        spent, began = seconds_of(job), time.monotonic()
        stop_one_amid_a_query(job, wire)
        slow, asked_before = wire.asked()[-1], len(wire.asked())
        if how == "stop":
            assert agent.stop() == 0
        else:
            agent.configure({"exporters": {"ras": {**ras, "oldest_version": "2.30.0"}}})
            agent.reload()
            wait_until(lambda: len(wire.asked()) > asked_before, QUERY_SECONDS, "a query of the new section")
            wait_until(lambda: not wire.in_flight(), 10.0, "its end")
        wait_until(lambda: slow.client_ended_at is not None, 5.0, "the end of the connection")
        assert slow.asked_at is not None
        assert slow.server_ended_at is not None
        assert slow.server_ended_at - slow.asked_at > FAST_SECONDS  # of RAS's patience a part may be over
        assert asked_one_after_the_other_to_the_end(wire)
        assert seconds_of(job) - spent < IDLE_SHARE * (time.monotonic() - began)
        said = {line for each in wire.connections for line in each.lines}
        assert {line for line in said if not ALLOWED.fullmatch(line)} == set()
        assert "STATUS" in said


def test_a_client_that_leaves_early_has_the_thread_spin(job: RasJob) -> None:
    """What the agent takes care not to do shows in what these tests measure."""
    with Wire(job.port) as wire:
        spent = wait_until(lambda: left_amid_a_query(job, wire), QUERY_SECONDS, "a query that is held up")
        wait_until(lambda: seconds_of(job) - spent > SPIN_SHARE, SILENT_SECONDS, "a thread that spins")
        assert not asked_one_after_the_other_to_the_end(wire)


def left_amid_a_query(job: RasJob, wire: Wire) -> float | None:
    """Ask while a process is stopped, and leave before the answer if that takes long.

    Returns the CPU time of the RAS threads at that moment, None when the answer came at once, or nobody is left to ask.
    """
    job.signal(STOPPED, signal.SIGCONT)
    with socket.create_connection(("127.0.0.1", job.port)) as client:
        client.sendall(b"CLIENT PROTOCOL 2\n")
        client.recv(100)
        if STOPPED in job.connected():
            return None
        job.signal(STOPPED, signal.SIGSTOP)
        client.sendall(b"STATUS\n")
        wait_until(lambda: wire.connections[-1].asked_at, 5.0, "the query")
        return seconds_of(job) if is_held_up(wire) else None
