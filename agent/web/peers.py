"""Name the peer of a connection: a user of this node if the kernel names one, else an address."""

import errno
import ipaddress
import socket
import struct
from collections.abc import Callable

from agent.system.netlink import Netlink, open_channel

LOOPBACK = "loopback"
"""Peer of all users of this node if the kernel names no user: each user can connect from all of 127.0.0.0/8."""
_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST = struct.Struct("=BBBBI")
"""struct inet_diag_req_v2 (linux/inet_diag.h): family, protocol, extensions, padding, states; then the socket."""
_SOCKET = struct.Struct("!HH16s16s")
"""struct inet_diag_sockid: ports and addresses; then interface and cookie in the kernel's own byte order."""
_ANY_INTERFACE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_OWNER = struct.Struct("=6x2s56xII")
"""struct inet_diag_msg: the port at the other end, user and inode. The inode is 0 if the process closed the socket."""
_ALL_STATES = 0xFFFFFFFF
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NO_NETLINK = frozenset({errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EPERM, errno.EACCES})
"""Errors of a sandbox without AF_NETLINK (55-hardware.conf allows it). Other errors, such as too many open files, are
temporary."""


class Peers:
    """Names peers. ``open_diagnosis`` opens a channel to sock_diag(7), or raises OSError."""

    def __init__(self, open_diagnosis: Callable[[], Netlink] = lambda: open_channel(_SOCK_DIAG, 0.0)) -> None:
        self._open = open_diagnosis
        self._channel: Netlink | None = None
        self._may_query = True

    def of(self, peer: object, own_end: object) -> str:
        """Return the name of the peer with socket name ``peer``; ``own_end``: the server's. Empty without addresses.

        An IPv6 host can use all addresses of its /64 network, so a /64 network is one peer.
        """
        if not isinstance(peer, tuple) or not isinstance(own_end, tuple):
            return ""
        address, own_address = _address(peer[0]), _address(own_end[0])
        uid = self._uid(address, peer[1], own_address, own_end[1])  # a user can connect from any address of the node
        if uid is not None:
            return f"uid {uid}"
        if address.is_loopback or own_address.is_loopback or address == own_address:
            return LOOPBACK
        return str(address) if address.version == 4 else f"{ipaddress.IPv6Address(address.packed[:8] + bytes(8))}/64"

    def close(self) -> None:
        """Close the channel; the next query opens a new channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _uid(self, address: _Address, port: int, own_address: _Address, own_port: int) -> int | None:
        """Return the user of the client's socket; None for a socket on another node, or if the kernel names no user."""
        if not self._may_query:
            return None
        try:
            if self._channel is None:
                self._channel = self._open()
        except OSError as error:
            self._may_query = error.errno not in _NO_NETLINK
            return None
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
        ends = _SOCKET.pack(port, own_port, address.packed.ljust(16, b"\0"), own_address.packed.ljust(16, b"\0"))
        try:
            answer = self._channel.ask(_BY_FAMILY, request + ends + _ANY_INTERFACE_AND_COOKIE)
            connected, uid, inode = _OWNER.unpack_from(answer)
        except (OSError, struct.error):  # the connection was closed, or the kernel has no tcp_diag
            return None
        is_client = inode and connected == own_port.to_bytes(2, "big")  # else it is a listener at the client's port
        return int(uid) if is_client else None


def _address(text: str) -> _Address:
    """Return the address; for an IPv4-mapped address (::ffff:10.0.0.1) the IPv4 address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
