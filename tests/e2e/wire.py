"""The packets to and from one TCP port of the loopback, recorded from outside (packet(7)); needs root."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from pathlib import Path

import msgspec
from nodes import Closing

ETH_P_IP = 0x0800
SO_ATTACH_FILTER, SO_RCVBUFFORCE = 26, 33
TCP = 6
FIN, SYN, RST = 1, 2, 4
BUFFER_BYTES = 32 * 1024 * 1024


def why_no_wire() -> str | None:
    """Return the reason why packets cannot be recorded (for a skipped test), or None."""
    return None if os.geteuid() == 0 else "packet sockets need root"


class Connection(msgspec.Struct):
    """One connection: the client's bytes, and the (monotonic) times at which each end closed or reset it."""

    sent: bytes = b""
    asked_at: float | None = None
    """The time of STATUS."""
    server_ended_at: float | None = None
    client_ended_at: float | None = None

    @property
    def in_flight(self) -> bool:
        """Return whether a report was requested and has not ended."""
        return self.asked_at is not None and self.server_ended_at is None

    @property
    def lines(self) -> list[str]:
        """Return the client's lines."""
        return self.sent.decode().splitlines()


class Wire(Closing):
    """Records the connections to ``port``; a context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connections: list[Connection] = []
        self._open: dict[int, Connection] = {}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self._filter(port)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.bind(("lo", ETH_P_IP))
        self._thread = threading.Thread(target=self._record)
        self._closing = False
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._socket.close()

    def in_flight(self) -> int:
        """Return the number of reports in progress."""
        return sum(connection.in_flight for connection in list(self.connections))

    def asked(self) -> list[Connection]:
        """Return the connections with a report request, in the order of the requests."""
        return [connection for connection in list(self.connections) if connection.asked_at is not None]

    def _filter(self, port: int) -> None:
        """Let the kernel select packets with the port at either end: bytes 20 to 23, as IP headers have no options."""
        program = [
            (0x28, 0, 0, 22),  # the destination's port
            (0x15, 2, 0, port),
            (0x28, 0, 0, 20),  # the source's port
            (0x15, 0, 1, port),
            (0x06, 0, 0, 0x40000),
            (0x06, 0, 0, 0),
        ]
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
        header = struct.pack("HL", len(program), ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, header)

    def _record(self) -> None:
        self._socket.settimeout(0.05)
        while not self._closing:
            try:
                packet = self._socket.recv(256 * 1024)
            except TimeoutError:
                continue
            if packet[0] == 0x45 and packet[9] == TCP:
                self._take(packet)

    def _take(self, packet: bytes) -> None:
        source, target, offset, flags = struct.unpack_from("!HH8xBB", packet, 20)
        (length,) = struct.unpack_from("!H", packet, 2)
        payload = packet[20 + (offset >> 4) * 4 : length]
        now = time.monotonic()
        if target == self._port and flags & SYN:
            self._open[source] = Connection()
            self.connections.append(self._open[source])
        from_client = target == self._port
        connection = self._open.get(source if from_client else target)
        if connection is None:  # from before the recording
            return
        if from_client:
            connection.sent += payload
            if payload.endswith(b"STATUS\n"):
                connection.asked_at = now
        if flags & (FIN | RST):
            end = "client_ended_at" if from_client else "server_ended_at"
            if getattr(connection, end) is None:
                setattr(connection, end, now)


def ras_thread_seconds(pid: int) -> float:
    """Return the CPU time of the process's RAS thread, with a resolution of 10 ms."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text() == "NCCL RAS\n":
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise AssertionError(f"process {pid} has no RAS thread")
