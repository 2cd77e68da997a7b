"""Peers: users of this node by their sockets, other clients by their addresses."""

import errno
import os
import socket
import struct
import subprocess
import sys

import pytest

from agent.system.netlink import Netlink
from agent.web.peers import LOOPBACK, Peers

OTHER_UID = 1234
CLIENT = """
import encodings.idna, os, socket, sys  # as root: another user may not read this Python
if sys.argv[3] != "-": os.setuid(int(sys.argv[3]))
client = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sys.stdin.read()
"""


def no_channel() -> Netlink:
    """Raise the error of a sandbox without AF_NETLINK."""
    raise OSError(97, "Address family not supported by protocol")


@pytest.mark.parametrize(("address", "peer"), [
    ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"),
    ("2001:db8::ffff:2", "2001:db8::/64"), ("2001:db8:0:1::1", "2001:db8:0:1::/64"), ("fe80::1%eth0", "fe80::/64"),
    ("127.0.0.1", LOOPBACK), ("127.3.2.1", LOOPBACK), ("::1", LOOPBACK), ("::ffff:127.0.0.9", LOOPBACK),
])  # fmt: skip
def test_addresses(address: str, peer: str) -> None:
    """If the kernel names no user, a peer is one IPv4 address, one IPv6 /64 network, or the whole loopback."""
    assert Peers(no_channel).of((address, 5), ("10.9.9.9", 19028)) == peer


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7", "::1"])
def test_the_user_of_a_client_on_this_node(host: str) -> None:
    """The kernel names the user of any client on this node; after a client has closed, it names no user."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    uid = str(OTHER_UID) if os.geteuid() == 0 else "-"
    where, peers = [host, str(listener.getsockname()[1]), uid], Peers()
    with listener, subprocess.Popen([sys.executable, "-c", CLIENT, *where], stdin=subprocess.PIPE) as client:
        accepted, name = listener.accept()
        with accepted:
            assert peers.of(name, accepted.getsockname()) == f"uid {OTHER_UID if uid != '-' else os.geteuid()}"
            client.communicate()
            assert accepted.recv(1) == b""
            assert peers.of(name, accepted.getsockname()) == LOOPBACK
    peers.close()


class Kernel:
    """Reports that each socket belongs to one user and is connected to a port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, raw: bytes, /) -> int:
        self.number = raw[8:12]
        return len(raw)

    def recv(self, _size: int, /) -> bytes:
        said = struct.pack("=6x2s56xII", self.port.to_bytes(2, "big"), OTHER_UID, 99)
        return struct.pack("=IHH4sI", 16 + len(said), 20, 0, self.number, 0) + said

    def close(self) -> None:
        """Do nothing."""


def test_another_address_of_the_node_is_no_other_peer() -> None:
    """A user is one peer, whichever of the node's addresses it connects from."""
    assert Peers(lambda: Netlink(Kernel(19028))).of(("10.0.0.2", 5), ("10.0.0.1", 19028)) == f"uid {OTHER_UID}"
    assert Peers(no_channel).of(("10.0.0.2", 5), ("127.0.0.1", 19028)) == LOOPBACK
    assert Peers(no_channel).of(("10.0.0.1", 5), ("10.0.0.1", 19028)) == LOOPBACK


def test_a_question_that_fails_is_no_end() -> None:
    """If the kernel refuses a lookup, the client's peer is its address, not its user; later clients are looked up."""

    class Broken:
        questions = 0

        def send(self, raw: bytes, /) -> int:
            self.questions += 1
            raise OSError(2, "No such file or directory")

        def recv(self, _size: int, /) -> bytes:
            return b""

        def close(self) -> None:
            self.questions = -1

    channel = Broken()
    peers = Peers(lambda: Netlink(channel))
    assert ([peers.of(("127.0.0.1", 1), ("127.0.0.1", 2)) for _ in range(2)], channel.questions) == ([LOOPBACK] * 2, 2)
    peers.close()
    assert channel.questions == -1


def test_a_passing_error_does_not_end_the_questions() -> None:
    """Too many open files cost one lookup; if netlink is forbidden, no further lookup is made."""
    errors = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EPERM, "Operation not permitted")]
    questions = 0

    def fail() -> Netlink:
        nonlocal questions
        questions += 1
        raise errors[min(questions, 2) - 1]

    peers = Peers(fail)
    for _ in range(4):
        assert peers.of(("127.0.0.1", 5), ("127.0.0.1", 19028)) == LOOPBACK
    assert questions == 2
