"""Query the kernel through netlink (netlink(7)): messages, attributes and a socket. Blocking.

Numbers have the kernel's byte order. All requests only read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

ROUTE, GENERIC, RDMA = 0, 16, 20  # Protocols (linux/netlink.h): network, families by name, RDMA
TIMEOUT_SECONDS = 2.0  # The kernel replies at once; a driver can wait for its device
MAX_MESSAGE_BYTES = 64 * 1024  # Limit of one datagram; datagrams of the kernel have at most 32 KiB
MAX_ANSWER_BYTES = 8 * 1024 * 1024
REQUEST, DUMP = 0x1, 0x300
TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # Errors that end by themselves
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR_CODE = struct.Struct("=i")
_ERROR, _DONE = 2, 3
_NESTED, _KIND_MASK = 0x8000, 0x3FFF


class Message(NamedTuple):
    """A message: its type, flags, sequence number and the payload after the header."""

    kind: int
    flags: int
    number: int
    payload: bytes


def attribute(kind: int, payload: bytes, *, nested: bool = False) -> bytes:
    """Return a padded attribute; ``nested``: its payload consists of attributes."""
    head = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind | (_NESTED if nested else 0))
    return head + payload + b"\0" * (-len(payload) % 4)


def attributes(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, payload) of the attributes in ``raw``, up to an incomplete attribute."""
    at = 0
    while at + _ATTRIBUTE.size <= len(raw):
        length, kind = _ATTRIBUTE.unpack_from(raw, at)
        if not _ATTRIBUTE.size <= length <= len(raw) - at:
            return
        yield kind & _KIND_MASK, raw[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4


def message(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """Return a message as bytes."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, number, 0) + payload


def messages(raw: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram, up to an incomplete message."""
    at = 0
    while at + _HEADER.size <= len(raw):
        length, kind, flags, number, _ = _HEADER.unpack_from(raw, at)
        if not _HEADER.size <= length <= len(raw) - at:
            return
        yield Message(kind, flags, number, raw[at + _HEADER.size : at + length])
        at += length + -length % 4


def open_channel(protocol: int, timeout_seconds: float = TIMEOUT_SECONDS) -> Netlink:
    """Return a socket to the kernel; raises OSError if the sandbox or the kernel does not allow it.

    With ``timeout_seconds`` 0 a query never blocks. Use 0 for protocols whose reply has arrived when the send returns.
    """
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        channel.settimeout(timeout_seconds)
        channel.bind((0, 0))
    except OSError:
        channel.close()
        raise
    return Netlink(channel)


class Netlink:
    """A netlink socket for one query at a time. A query raises OSError with the kernel's error."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._number = 0

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._channel.close()

    def ask(self, kind: int, payload: bytes) -> bytes:
        """Return the payload of the single reply."""
        for answer in self._answers(kind, REQUEST, payload):
            return answer
        raise OSError("the kernel's answer is empty")

    def dump(self, kind: int) -> list[bytes]:
        """Return the payloads of all replies."""
        return list(self._answers(kind, REQUEST | DUMP, b""))

    def _answers(self, kind: int, flags: int, payload: bytes) -> Iterator[bytes]:
        """Yield payloads until the reply is complete; skip late replies to earlier queries."""
        self._number += 1
        self._channel.send(message(kind, flags, self._number, payload))
        remaining_bytes = MAX_ANSWER_BYTES
        while raw := self._channel.recv(MAX_MESSAGE_BYTES):
            remaining_bytes -= len(raw)
            if remaining_bytes < 0:
                raise OSError("the kernel's answer is too long")
            for part in messages(raw):
                if part.number == self._number:
                    if part.kind in (_ERROR, _DONE):
                        _check(part.payload)
                        return
                    yield part.payload
        raise OSError("the kernel's answer is cut")


def _check(payload: bytes) -> None:
    (code,) = _ERROR_CODE.unpack_from(payload) if len(payload) >= _ERROR_CODE.size else (0,)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
