"""The agent with a stub of NVIDIA's library, found by the loader: GPUs, Xids, a driver that hangs.

No GPU is tested in this file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, wait_until
from full import full
from nvml_stub import LIBRARY, XID, Node

LOOK_SECONDS = 30.0
"""The exporter reads the GPUs every 10 s."""
SAVE_SECONDS = 18.0
"""Longer than a checkpoint's delay (5 s and a tick), plus its write, plus the export of its time (10 s)."""
QUIET_SECONDS = 60.0
HANG_SECONDS = 1.0
SCRAPE_SECONDS = 1.0
"""The limit even on a busy machine; a scrape that waits for the driver would take as long as the driver hangs."""
CONFIG = {
    "exporters": {"inspector": {"enabled": False}, "ras": {"enabled": False}, "nvml": {"hang_seconds": HANG_SECONDS}}
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Provide eight healthy GPUs."""
    directory = tmp_path / "driver"
    directory.mkdir()
    return Node(directory)


@pytest.fixture
def agent(tmp_path: Path, node: Node) -> Iterator[Agent]:
    """Provide an agent whose loader finds the stub."""
    with Agent(tmp_path, CONFIG, env={"LD_LIBRARY_PATH": str(node.library.parent)}) as agent:
        agent.wait_for("rankwatch_gpu_present", 1.0, gpu="0", seconds=LOOK_SECONDS)
        yield agent


def helpers(agent: Agent) -> list[int]:
    """Return the agent's child processes that have NVIDIA's library."""
    pid = agent.pid()
    children = [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]
    return [child for child in children if has_library(child)]


def has_library(pid: int) -> bool:
    """Return whether the process has NVIDIA's library."""
    try:
        return LIBRARY in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_gpus_xids_and_a_lost_gpu(agent: Agent, node: Node) -> None:
    """Only a helper loads the library; two equal Xids count as two, and their GPU is lost."""
    assert len(agent.samples("rankwatch_gpu_power_watts")) == 8
    assert agent.value("rankwatch_node_check_success", check="gpu_driver_hung") == 1.0
    assert not has_library(agent.pid())
    assert len(helpers(agent)) == 1
    began = time.time()
    for code in (79, 79, 63):
        node.event(3, XID, code)
    node.update({"gpu3.utilization.0": "!15"})
    agent.wait_for("rankwatch_gpu_present", 0.0, gpu="3", seconds=LOOK_SECONDS)
    counted = {
        sample.labels["xid"]: sample.value for sample in agent.samples("rankwatch_gpu_xid_errors_total", gpu="3")
    }
    assert counted == {"79": 2.0, "63": 1.0}
    assert agent.value("rankwatch_gpu_power_watts", gpu="3") is None
    assert len(agent.samples("rankwatch_gpu_power_watts")) == 7
    quiet = "a checkpoint that holds it"  # an unchanged state is not saved again
    wait_until(lambda: began < agent.saved_at() < time.time() - SAVE_SECONDS, QUIET_SECONDS, quiet)
    agent.kill9()
    agent.start()
    agent.wait_for("rankwatch_gpu_present", 0.0, gpu="3", seconds=LOOK_SECONDS)
    assert agent.value("rankwatch_gpu_xid_errors_total", gpu="3", xid="79") == 2.0


@full
def test_a_driver_that_hangs(agent: Agent, node: Node) -> None:
    """While the driver hangs, scrapes are as fast as usual, GPU series are absent, and only one helper exists."""
    node.update({"hang": "count"})
    agent.wait_for("rankwatch_node_check_success", 0.0, check="gpu_driver_hung", seconds=LOOK_SECONDS)
    until = time.monotonic() + LOOK_SECONDS  # during several attempts
    while time.monotonic() < until:
        began = time.monotonic()
        page = agent.page()
        assert time.monotonic() - began < SCRAPE_SECONDS
        assert 'rankwatch_node_check_success{check="gpu_driver_hung"} 0.0' in page
        assert "rankwatch_gpu_present{" not in page
        assert len(helpers(agent)) <= 1
    node.update({"hang": None})
    agent.wait_for("rankwatch_node_check_success", 1.0, check="gpu_driver_hung", seconds=3 * LOOK_SECONDS)
    assert len(agent.samples("rankwatch_gpu_present")) == 8
    assert len(helpers(agent)) == 1


@full
def test_an_agent_that_stops_leaves_no_helper(agent: Agent, node: Node) -> None:
    """A stopping agent leaves no helper and does not wait for a driver that hangs."""
    (helper,) = helpers(agent)
    node.update({"hang": "count"})
    agent.wait_for("rankwatch_node_check_success", 0.0, check="gpu_driver_hung", seconds=LOOK_SECONDS)
    assert agent.stop() == 0
    wait_until(lambda: not has_library(helper), LOOK_SECONDS, "the helper's end")
