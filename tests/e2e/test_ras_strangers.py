"""A user can make the agent connect only to that user's own processes on this node (end to end)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agents import Agent
from full import full
from nodes import Node, wait_until, why_no_nodes
from users import NOBODY, as_user, open_directory

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or ""),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="ip (iproute2) not found"),
    pytest.mark.timeout(120),
]

METADATA, PORT = "169.254.169.254", 6379
OTHER = "192.0.2.9"
ENOUGH_SECONDS = 12.0
"""The stream of events starts at once; the first query starts within an interval of 7 s."""
TARGET = """
import socket, sys, threading
def serve(listener):
    while True:
        connection, _ = listener.accept()
        print(*listener.getsockname(), flush=True)
        connection.close()
for host in sys.argv[2:]:
    listener = socket.create_server((host, int(sys.argv[1])))
    threading.Thread(target=serve, args=(listener,)).start()
print("ready", flush=True)
"""
"""A service that is no rank, and logs each connection."""


class Target:
    """A service on the node at these hosts, and its log."""

    def __init__(self, node: Node, path: Path, *hosts: str) -> None:
        self._path = path
        with path.open("wb") as out:
            self._process = node.popen([sys.executable, "-c", TARGET, str(PORT), *hosts], stdout=out)
        wait_until(lambda: self.messages() == ["ready"], 10.0, "the service")

    def messages(self) -> list[str]:
        return self._path.read_text().splitlines()


@pytest.fixture
def node() -> Iterator[Node]:
    """Provide a node that can reach a cloud's metadata service and another machine."""
    with Node("gpu") as node:
        for address in (METADATA, OTHER):
            assert node.run(["ip", "address", "add", f"{address}/32", "dev", "lo"]).returncode == 0
        yield node


class Attacker:
    """A user's rank process that listens at ``host``, with ``named`` in NCCL_RAS_ADDR; ``apart``: in a new network."""

    def __init__(self, node: Node, directory: Path, name: str, host: str, named: str, *, apart: bool) -> None:
        library = directory / "libnccl.so.2.32.3"
        library.write_bytes(bytes(4096))
        program = directory / "lone_rank.py"
        shutil.copy(Path(__file__).with_name("lone_rank.py"), program)
        env = {**os.environ, "SLURM_JOB_ID": name, "RANK": "0", "WORLD_SIZE": "1", "NCCL_RAS_ADDR": f"{named}:{PORT}"}
        argv = [*as_user(NOBODY, "--"), sys.executable, str(program), str(library), str(PORT), host]
        if apart:
            up = f'ip link set lo up; ip address add {METADATA}/32 dev lo; exec "$@"'
            argv = ["unshare", "--net", "sh", "-c", up, "sh", *argv]
        self.process = node.popen(argv, env=env, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize(("host", "named", "apart"), [
    (METADATA, METADATA, True),
    pytest.param("0.0.0.0", METADATA, True, marks=full),  # noqa: S104  # what an attacker binds
    pytest.param("::ffff:127.0.0.1", "[::ffff:127.0.0.1]", True, marks=full),
    pytest.param("::", "[::ffff:127.0.0.1]", False, marks=full),
    pytest.param("127.0.0.1", "127.0.0.1", True, marks=full),
])  # fmt: skip
def test_a_user_makes_the_agent_query_no_other_user(
    node: Node, tmp_path: Path, host: str, named: str, *, apart: bool
) -> None:
    """The agent does not connect to a service at an address that a user names, or in a user's own network."""
    target = Target(node, tmp_path / "target", METADATA, OTHER, "127.0.0.1")
    with ExitStack() as stack:
        attacker = Attacker(node, stack.enter_context(open_directory()), "4711", host, named, apart=apart)
        stack.callback(attacker.process.kill)
        agent = stack.enter_context(Agent(tmp_path, {}, node=node))
        wait_until(lambda: agent.value("rankwatch_rank_up", job_id="4711") == 1, 15.0, "the job")
        time.sleep(ENOUGH_SECONDS)
        assert target.messages() == ["ready"]
        assert not agent.value("rankwatch_ras_queries_total")


def test_a_user_whose_own_process_listens_is_asked(node: Node, tmp_path: Path) -> None:
    """The agent queries a user's own process that listens on the node's loopback."""
    with ExitStack() as stack:
        attacker = Attacker(node, stack.enter_context(open_directory()), "4711", "127.0.0.1", "127.0.0.1", apart=False)
        stack.callback(attacker.process.kill)
        agent = stack.enter_context(Agent(tmp_path, {}, node=node))
        wait_until(lambda: (agent.value("rankwatch_ras_queries_total") or 0) > 0, 30.0, "a query")
