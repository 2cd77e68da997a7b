"""Counters in a real Prometheus while the agent is killed again and again."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from agents import Agent
from full import FULL
from jobs import SimulatedJob
from machines import Machine, alive, records
from nodes import wait_until
from prometheus import Prometheus, Raw, one_target, prometheus_binaries, why_no_prometheus
from rules import promtools

KILLS = 15 if FULL else 5
BUSY = ("--records-per-second", "200", "--flush-at-end")
OPERATIONS = "rankwatch_collective_operations_total"
BYTES = "rankwatch_collective_bytes_total"
ACCEPTED = "rankwatch_inspector_records_total"
MAX_LAG_SECONDS = 0.05
SLEEPER = """
import select, sys, time
late = 0.0
while True:
    before = time.monotonic()
    if select.select([sys.stdin], [], [], 0.01)[0]:
        break
    late = max(late, time.monotonic() - before - 0.01)
print(late)
"""
"""A process that only sleeps measures the machine's own delays until the test ends."""
Key = tuple[str, str, str, str]

pytestmark = pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("binary", prometheus_binaries())
def test_nothing_is_lost_or_doubled_over_kills(tmp_path: Path, binary: str) -> None:
    """increase() in two Prometheus servers equals the records in the files, over many kills of the agent."""
    machine = Machine(tmp_path)
    with (
        machine.agent(dump_dir=tmp_path / "job" / "inspector") as agent,
        Prometheus(tmp_path / "first", one_target("first", agent.port), binary) as first,
        Prometheus(tmp_path / "second", one_target("second", agent.port), binary) as second,
        machine.job(*BUSY) as job,
    ):
        job.wait_for("ready")
        began = time.time()
        agent.wait_for_states(alive(8))
        # A kill before a checkpoint that includes the files would lose earlier records.
        wait_until(lambda: agent.saved_at() > began + 6, 20.0, "a checkpoint")
        started = time.time()
        for number in range(KILLS):
            if number % 5 == 4:  # most kills precede the next checkpoint, some follow one
                wait_until(lambda t=started: agent.saved_at() > t, 20.0, "another checkpoint")
            agent.kill9()
            agent.start()
            started = time.time()
            server = (first, second)[number % 2]
            wait_until(lambda s=server, t=started: was_scraped(s, t), 20.0, "a scrape of the counters")
        job.signal_launcher(signal.SIGUSR1)
        assert job.wait() == 0
        operations, message_bytes = in_files(job)
        agent.wait_for(ACCEPTED, operations.total(), result="accepted")
        for server in (first, second):
            wait_until(lambda s=server: s.value(f"sum({OPERATIONS})") == operations.total(), 10.0, "the last scrape")
            check(server, OPERATIONS, operations)
            check(server, BYTES, message_bytes)
            for name in ("rankwatch_collective_seconds_total", "rankwatch_collective_bus_bytes_total", ACCEPTED):
                assert all(not fell(series) for series in server.raw(name))
        assert_page_is_good(agent)


def test_the_event_loop_is_never_late(tmp_path: Path) -> None:
    """With a busy job and endless scrapes no timer is more than 50 ms late, apart from the time without a CPU."""
    machine = Machine(tmp_path)
    sleeper = subprocess.Popen([sys.executable, "-Sc", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with sleeper, machine.job(*BUSY) as job, machine.agent(job) as agent:
        job.wait_for("ready")
        agent.wait_for_states(alive(8))
        began = time.time()
        wait_until(lambda: agent.looked_at("process") > began + 3 and agent.page())
        lag_seconds = agent.value("rankwatch_event_loop_lag_seconds") or 0.0
        machines_seconds = float(sleeper.communicate(b"enough\n")[0]) + queued_seconds(agent)
        assert lag_seconds - machines_seconds < MAX_LAG_SECONDS, machines_seconds


def queued_seconds(agent: Agent) -> float:
    """Return how long the agent's threads were ready but had no CPU: the second number of schedstat."""
    waits = (task.joinpath("schedstat").read_text().split()[1] for task in Path(f"/proc/{agent.pid()}/task").iterdir())
    return sum(map(int, waits)) / 1e9


def was_scraped(server: Prometheus, since: float) -> bool:
    """Return whether counters were scraped after this time, when the agent had caught up."""
    return (server.value(f"max(timestamp({OPERATIONS}))") or 0.0) > since


def check(server: Prometheus, name: str, expected: Counter[Key]) -> None:
    """Compare a counter in the server with the files, series by series."""
    shown = {key(series): series for series in server.raw(name)}
    assert set(shown) == set(expected)
    for place, series in shown.items():
        first, last = series.samples[0][1], series.samples[-1][1]
        assert not fell(series), series
        assert last == expected[place]
        assert server.increase(series) == pytest.approx(last - first, rel=1e-12)
        assert len({value for _, value in series.samples}) > KILLS


def fell(series: Raw) -> bool:
    """Return whether a value ever fell."""
    values = [value for _, value in series.samples]
    return any(later < earlier for earlier, later in itertools.pairwise(values))


def key(series: Raw) -> Key:
    """Return the labels that distinguish the series of one job."""
    labels = series.labels
    return labels["rank"], labels["comm"], labels["collective"], labels["size"]


def in_files(job: SimulatedJob) -> tuple[Counter[Key], Counter[Key]]:
    """Count operations and bytes in the files of eight ranks."""
    operations: Counter[Key] = Counter()
    message_bytes: Counter[Key] = Counter()
    for rank in range(8):
        [path] = job.dump_dir.glob(f"*-pid{job.pid(rank)}.log")
        for record in records(path):
            perf = record["coll_perf"]
            size = perf["coll_msg_size_bytes"]
            bound = next(b for b in (8192 * 4**step for step in range(12)) if size <= b)
            place = (str(rank), record["header"]["id"].removeprefix("0x"), perf["coll"], str(bound))
            operations[place] += 1
            message_bytes[place] += size
    return operations, message_bytes


def assert_page_is_good(agent: Agent) -> None:
    """Check that every promtool accepts the page of an ended job without a warning."""
    page = agent.page()
    assert "rankwatch_rank_exit_info{" in page
    for promtool in promtools():
        command = [promtool, "check", "metrics"]
        result = subprocess.run(command, input=page, check=False, capture_output=True, text=True)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), promtool
