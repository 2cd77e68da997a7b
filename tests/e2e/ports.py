"""TCP ports for servers under test."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, AFTER = 10_000, 19_000
"""Below Linux's ephemeral ports, so that no outgoing connection uses these ports. The agent's own port is 19028."""
_BEGIN = FIRST + os.getpid() * 61 % (AFTER - FIRST)
"""Test processes that share a loopback start at different ports."""
_PORTS = itertools.cycle([*range(_BEGIN, AFTER), *range(FIRST, _BEGIN)])


def free_port() -> int:
    """Return a free TCP port of the loopback; no other call within 9,000 calls returns it."""
    for port in _PORTS:
        with socket.socket() as any_socket:
            any_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                any_socket.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the numbers never end")
