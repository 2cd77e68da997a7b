"""The addresses that the exporter connects to, and those to which it never connects, whatever a job's settings name."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from rank_table import environment
from ras_node import Node
from ras_server import answering, served

from agent.sdk.exporter import NoData
from exporters.ras.query import runner as reached
from exporters.ras.query.policy import MIN_INTERVAL_SECONDS

LOCAL = (
    "Main:\n  +-- 0.0.0.0/0 3 0 5\n|-- 127.0.0.0\n   /8 host LOCAL\n|-- 10.0.0.1\n   /32 host LOCAL\n"
    "|-- 10.0.0.255\n   /32 link BROADCAST\n|-- 169.254.7.7\n   /32 host LOCAL\n"
)
LOCAL6 = (
    "00000000000000000000000000000001 01 80 10 80       lo\n"
    "fd000000000000000000000000000001 04 40 00 82     eth0\n"
    "fe800000000000000000000000000001 02 40 20 80     eth0\n"
)
PORT = 6379
REFUSED = {
    "IPv4 in IPv6": "::ffff:127.0.0.1", "the cloud's metadata": "169.254.169.254", "link-local here": "169.254.7.7",
    "link-local IPv6 here": "fe80::1", "multicast": "224.0.0.1", "multicast IPv6": "ff02::1",
    "broadcast": "255.255.255.255", "a network's broadcast": "10.0.0.255", "another machine": "10.0.0.2",
    "another machine's IPv6": "fd00::2",
}  # fmt: skip
ALLOWED = {
    "loopback": ("127.0.0.1", "127.0.0.1"),
    "another loopback": ("127.0.0.9", "127.0.0.9"),
    "loopback IPv6": ("::1", "::1"),
    "an interface": ("10.0.0.1", "10.0.0.1"),
    "an interface's IPv6": ("fd00::1", "fd00::1"),
    "every address": ("0.0.0.0", "127.0.0.1"),  # noqa: S104  # what a job sets
    "every address IPv6": ("::", "::1"),
}


def hexadecimal(host: str) -> str:
    """Return an address in the format of the kernel's tables."""
    packed = ip_address(host).packed
    return "".join(packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4))


def listening(host: str, inode: int, port: int = PORT, uid: int = 0) -> str:
    """Return the row of a listener."""
    local = hexadecimal(host)
    return f"0: {local}:{port:04X} {'0' * len(local)}:0000 0A 0:0 0:0 0 {uid} 0 {inode} 1\n"


class Target:
    """A service that no rank holds and that all connections reach. ``lines``: received bytes by connection."""

    def __init__(self) -> None:
        self.port = 0
        self.reached: list[str] = []
        self.lines: list[bytes] = []


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """Provide the service, which replaces the server at any address."""
    target, connect = Target(), asyncio.open_connection

    async def to_target(host: str, port: int, **options: Any) -> Any:
        target.reached.append(host)
        return await connect("127.0.0.1", target.port, **options)

    monkeypatch.setattr(asyncio, "open_connection", to_target)
    monkeypatch.setattr(reached, "ACCEPT_SECONDS", 0.02)
    return target


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide a node with these addresses and no rank."""
    node = Node(tmp_path, ranks={})
    (node.tree.root / "net/fib_trie").write_text(LOCAL)
    (node.tree.root / "net/if_inet6").write_text(LOCAL6)
    with node.listener:
        yield node


def add(node: Node, address: str, rows: str) -> None:
    """Add a rank with an address in its settings, and this node's listeners; the rank holds inode 11."""
    bracketed = f"[{address}]" if ":" in address else address
    node.add(11, environment(0, world=4) | {"NCCL_RAS_ADDR": f"{bracketed}:{PORT}"})
    (node.tree.root / "net/tcp").write_text("")
    family = "tcp6" if len(rows.split()[1]) > 13 else "tcp"
    (node.tree.root / "net" / family).write_text(rows)


def visited(node: Node, target: Target) -> list[str]:
    """Run the exporter; return the hosts that it connects to."""
    asyncio.run(run(node, target))
    return target.reached


async def run(node: Node, target: Target) -> None:
    """Make the exporter look, monitor and query several times."""
    async with served(answering((b"SERVER PROTOCOL 2\n",), lines=target.lines)) as endpoint:
        target.port = endpoint.port
        async with node.exporter() as exporter:
            for _ in range(3):
                node.table.tick(1.1 * MIN_INTERVAL_SECONDS)
                with suppress(NoData):
                    await exporter.update()
                await exporter.settle()


@pytest.mark.parametrize("everywhere", [False, True], ids=["bound to it", "bound to all"])
@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED)
def test_an_address_that_is_not_this_nodes_is_never_connected_to(
    node: Node, target: Target, address: str, *, everywhere: bool
) -> None:
    """The agent never connects to another node's address, even if a rank listens at it (IP_FREEBIND) or at `::`."""
    wildcard = "::" if ":" in address else "0.0.0.0"  # noqa: S104  # what a job binds
    add(node, address, listening(wildcard if everywhere else address, 11))
    assert visited(node, target) == []


@pytest.mark.parametrize(("address", "host"), ALLOWED.values(), ids=ALLOWED)
def test_an_address_of_this_node_gets_a_connection_but_no_data_of_others(
    node: Node, target: Target, address: str, host: str
) -> None:
    """The agent connects to the rank's address and sends nothing before the rank has accepted."""
    add(node, address, listening(address, 11))
    assert set(visited(node, target)) == {host}
    assert set(target.lines) <= {b""}


@pytest.mark.parametrize(("inode", "uid"), [(99, 0), (11, 1)], ids=["another process' socket", "another user's socket"])
def test_a_listener_that_is_not_the_ranks_is_never_connected_to(
    node: Node, target: Target, inode: int, uid: int
) -> None:
    """The agent connects only if the rank has the socket at the address, and the socket is of the rank's user."""
    add(node, "127.0.0.1", listening("127.0.0.1", inode, uid=uid))
    assert visited(node, target) == []


@pytest.mark.parametrize("address", ["10.1.0.7", "169.254.169.254", "127.0.0.1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("everywhere", [False, True], ids=["bound to it", "bound to all"])
def test_a_network_namespace_of_a_jobs_own_leads_nowhere(
    node: Node, target: Target, address: str, *, everywhere: bool
) -> None:
    """An address in a job's own network namespace is not used."""
    own = node.tree.root / "11/net"
    add(node, address, listening("10.0.0.9", 12))
    (node.tree.root / "11/ns/net").symlink_to("net:[4026532999]")
    (own / "fib_trie").write_text(f"|-- {'169.254.169.254' if ':' in address else address}\n   /32 host LOCAL\n")
    rows = listening("0.0.0.0" if everywhere else address, 11)  # noqa: S104  # what a job binds
    (own / ("tcp6" if len(rows.split()[1]) > 13 else "tcp")).write_text(rows)
    assert visited(node, target) == []
