"""Nodes: the test machines themselves."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL

import pytest
from nodes import Node, Reply, wait_until, why_no_nodes

pytestmark = [pytest.mark.root, pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")]

ORPHAN = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n"


def test_a_node_has_its_own_name_network_and_processes(tmp_path: Path) -> None:
    """Two nodes: own host names, servers on one port each answer only inside, files are shared, pids are not."""
    with Node("first") as first, Node("second") as second:
        for node in (first, second):
            (tmp_path / node.hostname).mkdir()
            (tmp_path / node.hostname / "name").write_text(node.hostname)
            server = [sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1"]
            node.popen([*server, "--directory", tmp_path / node.hostname], stdout=DEVNULL, stderr=DEVNULL)

        def answer(node: Node) -> Reply | None:
            try:
                return node.curl(8000, "/name")
            except ConnectionRefusedError:
                return None

        assert [wait_until(lambda node=node: answer(node)).body for node in (first, second)] == ["first", "second"]
        assert first.curl(8000, "/other").status == 404
        assert first.run(["hostname"]).stdout == "first\n"
        assert len(first.pids()) == len(second.pids()) == 2
        with pytest.raises(ConnectionRefusedError):
            second.connect(8001)


def test_init_reaps_orphans_and_close_ends_them() -> None:
    """A process whose parent left belongs to init: reaped when it dies, ended when the node closes."""
    with Node("reaper") as node:
        for _ in range(2):
            assert node.popen([sys.executable, "-S", "-c", ORPHAN]).wait() == 0
        first, second = sorted(node.pids() - {1})
        outside = node.host_pid(second)
        node.kill(first, signal.SIGKILL)
        wait_until(lambda: node.pids() == {1, second})
    wait_until(lambda: not Path(f"/proc/{outside}").exists())
    with pytest.raises(ProcessLookupError):
        node.host_pid(second)


def test_close_does_not_wait_for_a_stopped_program() -> None:
    """A program that was stopped, and nsenter with it, ends with the node; closing twice is harmless."""
    node = Node("stopped")
    process = node.popen([sys.executable, "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    began = time.monotonic()
    node.close()
    node.close()
    assert time.monotonic() - began < 5.0
