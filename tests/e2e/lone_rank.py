"""A rank process whose RAS sends what it is told to: `python lone_rank.py LIBRARY PORT WHAT BYTES`.

It maps LIBRARY, as which it counts, and listens at PORT of the loopback in a thread called as NCCL calls its own.
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


def main(library: str, port: str, what: str, length: str) -> None:
    """Run until killed."""
    with open(library, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    listener = socket.create_server(("127.0.0.1", int(port)))
    thread = threading.Thread(target=serve, args=(listener, KINDS[what](int(length))))
    thread.start()
    thread.join()
    mapped.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
