"""TCP sockets of a network namespace, from /proc. Blocking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from exporters.ras.protocol.client import Endpoint

MAX_TABLE_BYTES = 8 * 1024 * 1024
"""Listening sockets come first in it (tcp_seq_start of the kernel); a connection beyond it has no known server."""
MAX_PORT = 65535
LISTEN = "0A"
ESTABLISHED = "01"


class Socket(NamedTuple):
    """A row of /proc/net/tcp; a connection that nobody has accepted yet has inode 0."""

    local: Endpoint
    remote: Endpoint
    inode: int


def sockets(folder: Path, state: str) -> Iterator[Socket]:
    """The sockets in ``state`` of the tables in ``folder``, as /proc/PID/net is one; none where they cannot be read."""
    for name in ("tcp", "tcp6"):
        try:
            with (folder / name).open("rb") as file:
                yield from parse_sockets(file.read(MAX_TABLE_BYTES).decode("ascii", "replace"), state)
        except OSError:
            continue


def parse_sockets(table: str, state: str) -> list[Socket]:
    """The sockets in ``state`` of a table like /proc/net/tcp. Lines that are none are left out."""
    found = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != state:
            continue
        try:
            found.append(Socket(_endpoint(fields[1]), _endpoint(fields[2]), int(fields[9])))
        except (ValueError, OverflowError):
            continue
    return found


def _endpoint(text: str) -> Endpoint:
    """An address as the kernel writes it: words of the machine's byte order, and the port."""
    host, _, port = text.partition(":")
    packed = b"".join(int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8))
    number = int(port, 16)
    if not 0 <= number <= MAX_PORT:
        raise ValueError(f"{text!r} has no port")
    return Endpoint(str(ip_address(packed)), number)
