"""A rank process whose RAS sends what it is told to: `python lone_rank.py LIBRARY PORT WHAT BYTES [HOST]`.

It maps LIBRARY, as which it counts, and listens at PORT of HOST (by default the loopback; it need be no address of the
machine) in a thread called as NCCL calls its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIECE_BYTES = 1024 * 1024
LARGE_RANKS, LARGE_COMMUNICATORS = 7200, 10
"""A report of 38 MiB."""
_PR_SET_NAME = 15
_IP_FREEBIND = 15
_IPV6_FREEBIND = 78


def report(_: int) -> Iterator[bytes]:
    """A sound and large report."""
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    import ras_reports  # noqa: PLC0415  # of the unit tests

    return ras_reports.report(LARGE_RANKS, LARGE_COMMUNICATORS)


def padding(length: int) -> Iterator[bytes]:
    """A report of nothing but spaces."""
    return (b" " * PIECE_BYTES for _ in range(length // PIECE_BYTES))


def nesting(length: int) -> Iterator[bytes]:
    """A report that opens more lists than anybody could."""
    return (b"[" * PIECE_BYTES for _ in range(length // PIECE_BYTES))


def hunger(length: int) -> Iterator[bytes]:
    """Ranks that take many times their length once they are read."""
    yield b'{"nccl_version": "2.32.3", "ras": {"timeouts_count": 0},'
    yield b'"communicators": [{"hash": "0x1", "size": 9, "ranks": ['
    each = b'{"rank":1,"host":"","pid":1,"nvml_dev":1},'
    for _ in range(length // PIECE_BYTES):
        yield each * (PIECE_BYTES // len(each))
    yield each[:-1] + b'], "missing_ranks": []}]}'


KINDS: dict[str, Callable[[int], Iterator[bytes]]] = {
    "report": report,
    "padding": padding,
    "nesting": nesting,
    "hunger": hunger,
}


def serve(listener: socket.socket, pieces: Iterator[bytes]) -> None:
    """Answer every connection, each in a thread of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"NCCL RAS")
    kept = list(pieces)
    print("ready", flush=True)  # noqa: T201  # the test waits for it
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(connection, kept)).start()


def converse(connection: socket.socket, pieces: list[bytes]) -> None:
    """Answer commands as a RAS thread does; to MONITOR nothing ever happens."""
    with connection, connection.makefile("rb") as lines, contextlib.suppress(ConnectionError):
        for line in lines:
            if line == b"STATUS\n":
                for piece in pieces:
                    connection.sendall(piece)
                return
            connection.sendall(b"SERVER PROTOCOL 2\n" if line.startswith(b"CLIENT PROTOCOL ") else b"OK\n")


def listen(host: str, port: int) -> socket.socket:
    """A listener at an address, also one that is not the machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not host.startswith("::ffff:")))
        listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    listener.bind((host, port))
    listener.listen()
    return listener


def main(library: str, port: str, what: str, length: str, host: str = "127.0.0.1") -> None:
    """Run until killed."""
    with open(library, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    listener = listen(host, int(port))
    thread = threading.Thread(target=serve, args=(listener, KINDS[what](int(length))))
    thread.start()
    thread.join()
    mapped.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
