"""TCP sockets and addresses of a network namespace, from /proc alone. Blocking."""

import contextlib
import re
import sys
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import NamedTuple

from exporters.ras.protocol.client import Endpoint
from exporters.ras.report.model import Addresses

MAX_ADDRESSES = 1024  # Limit for each namespace; a cluster node has a few addresses

_BROADCAST = "255.255.255.255"
_LOCAL = re.compile(r"\|-- ([0-9.]{7,15})\n\s+/(\d{1,2}) host LOCAL$", re.MULTILINE)
_IPV6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)


def addresses_in(folder: Path) -> Addresses:
    """Return the addresses in the tables of ``folder``, a /proc/PID/net; no address when unreadable.

    Some networks are local as a whole (127.0.0.0/8).
    """
    networks: list[IPv4Network | IPv6Network] = []
    for network in list(dict.fromkeys(_LOCAL.findall(_read(folder / "fib_trie"))))[:MAX_ADDRESSES]:
        with contextlib.suppress(ValueError):
            networks.append(IPv4Network(network, strict=False))
    digits = _IPV6.findall(_read(folder / "if_inet6"))[:MAX_ADDRESSES]
    networks.extend(IPv6Network(int(address, 16)) for address in digits)
    return Addresses(tuple((network[0].packed, network[-1].packed) for network in networks))


def may_be_named(host: str) -> bool:
    """Return False for an address to which a job's settings may not send the agent.

    Such an address stands for another address (IPv4 in IPv6), depends on the interface, or names no single machine.
    """
    address = ip_address(host)
    return not (
        getattr(address, "ipv4_mapped", None) is not None
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or host == _BROADCAST
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_TABLE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


MAX_TABLE_BYTES = 8 * 1024 * 1024  # Listening sockets come first in a table (tcp_seq_start of the kernel)
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Limit of a table's read to find one connection: 400,000 sockets. A connection beyond it has no known server."""
LISTEN = "0A"
ESTABLISHED = "01"
_MAPPED = bytes(10) + b"\xff\xff"


class Socket(NamedTuple):
    """A row of /proc/net/tcp: ``uid``: the user who opened it; ``inode``: 0 before a connection is accepted."""

    local: Endpoint
    remote: Endpoint
    uid: int
    inode: int


def sockets(folder: Path, state: str) -> list[Socket]:
    """Return the sockets in ``state`` in the tables of ``folder``, a /proc/PID/net; empty when unreadable."""
    return [listed for name in ("tcp", "tcp6") for listed in parse_sockets(_read(folder / name), state)]


def connection(folder: Path, local: Endpoint, remote: Endpoint) -> Socket | None:
    """Return the established connection with these ends; None if it is not within the first MAX_SEARCHED_BYTES.

    The table of IPv6 also has the IPv4 connections of a server that listens on every address of both families.
    """
    for name in ("tcp", "tcp6"):
        ends = " ".join(_written(end, mapped=name == "tcp6") for end in (local, remote)).encode()
        room = MAX_SEARCHED_BYTES
        try:
            with (folder / name).open("rb") as file:
                for line in file:
                    room -= len(line)
                    if room < 0:
                        break
                    if ends in line and (parsed := parse_sockets(line.decode("ascii", "replace"), ESTABLISHED)):
                        return parsed[0]
        except OSError:
            continue
    return None


def parse_sockets(table: str, state: str) -> list[Socket]:
    """Return the sockets in ``state`` of a table like /proc/net/tcp; skip lines that are not sockets."""
    parsed = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != state:
            continue
        try:
            parsed.append(Socket(_endpoint(fields[1]), _endpoint(fields[2]), int(fields[7]), int(fields[9])))
        except (ValueError, OverflowError):
            continue
    return parsed


def _written(endpoint: Endpoint, *, mapped: bool) -> str:
    """Return an address as the kernel writes it; ``mapped``: an IPv4 address as IPv6."""
    packed = ip_address(endpoint.host).packed
    if mapped and len(packed) == 4:
        packed = _MAPPED + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return f"{''.join(f'{word:08X}' for word in words)}:{endpoint.port:04X}"


def _endpoint(text: str) -> Endpoint:
    """Parse an address as the kernel writes it, in the machine's byte order, with its port; an IPv4 address in
    IPv6 is returned as IPv4."""
    host, _, port = text.partition(":")
    packed = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
    if (number := int(port, 16)) not in range(65536):
        raise ValueError(f"{text!r} has no port")
    address = ip_address(packed)
    return Endpoint(str(getattr(address, "ipv4_mapped", None) or address), number)
