"""A rank process whose RAS replies: `python lone_rank.py LIBRARY PORT HOST`.

It maps LIBRARY, from which the agent takes the version of NCCL. A thread with NCCL's name listens at PORT of HOST; HOST
need not be a local address."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import socket
import sys
import threading

_PR_SET_NAME = 15
_IP_FREEBIND = 15
_IPV6_FREEBIND = 78


def serve(listener: socket.socket) -> None:
    """Serve every connection in its own thread."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"NCCL RAS")
    print("ready", flush=True)  # noqa: T201  # the test waits for it
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=converse, args=(connection,)).start()


def converse(connection: socket.socket) -> None:
    """Accept commands as a RAS thread does, but reply nothing to STATUS, and send no event after MONITOR."""
    with connection, connection.makefile("rb") as lines, contextlib.suppress(ConnectionError):
        for line in lines:
            if line == b"STATUS\n":
                return
            connection.sendall(b"SERVER PROTOCOL 2\n" if line.startswith(b"CLIENT PROTOCOL ") else b"OK\n")


def listen(host: str, port: int) -> socket.socket:
    """Return a listener at an address, even if the address is not local."""
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


def main(library: str, port: str, host: str) -> None:
    """Run until killed."""
    with open(library, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    thread = threading.Thread(target=serve, args=(listen(host, int(port)),))
    thread.start()
    thread.join()
    mapped.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
