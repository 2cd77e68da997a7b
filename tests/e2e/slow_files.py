"""A file system with one file whose reads are slow, by the kernel's FUSE protocol (linux/fuse.h)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

NAME = b"data"
SIZE_BYTES = 1 << 30
READ_SECONDS = 2.0
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _INTERRUPT, _FORGETS = (
    1, 2, 3, 14, 15, 18, 25, 26, 36, 42,
)  # fmt: skip
_ROOT, _FILE = 1, 2
_ASYNC_READ = 1
"""As in libfuse: a reader waits uninterruptibly for pages, and not for the reply."""
_ENOENT, _ENOSYS = 2, 38
_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_DETACH = 2
_REQUEST_BYTES = 1 << 20


def attributes(node: int) -> bytes:
    """Return the stat of the directory or of the file."""
    mode, size = (0o040755, 0) if node == _ROOT else (0o100644, SIZE_BYTES)
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(code: int, node: int, body: bytes) -> bytes | int | None:
    """Return the reply to a request: its bytes, an errno, or None if no reply is expected."""
    if code in (_FORGET, _INTERRUPT, _FORGETS):
        return None
    if code == _INIT:
        return struct.pack("<IIIIHHIIHHII24x", 7, 31, 131072, _ASYNC_READ, 16, 12, 131072, 1, 0, 0, 0, 0)
    if code == _LOOKUP:
        found = body.rstrip(b"\0") == NAME
        return struct.pack("<QQQQII", _FILE, 0, 3600, 3600, 0, 0) + attributes(_FILE) if found else _ENOENT
    if code == _GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + attributes(node)
    if code == _OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if code == _READ:
        time.sleep(READ_SECONDS)
        (size,) = struct.unpack_from("<I", body, 16)
        return bytes(size)
    return b"" if code in (_RELEASE, _FLUSH) else _ENOSYS


def serve(device: int, may_close: threading.Event | None = None) -> None:
    """Reply to requests in order until the unmount; a close of the file waits for ``may_close``."""
    with contextlib.suppress(OSError):
        while request := os.read(device, _REQUEST_BYTES):
            _, code, unique, node, *_ = _HEADER.unpack_from(request)
            if code == _FLUSH and may_close is not None:
                may_close.wait()
            found = answer(code, node, request[_HEADER.size :])
            if found is not None:
                error, body = (-found, b"") if isinstance(found, int) else (0, found)
                with contextlib.suppress(FileNotFoundError):  # the requester has exited
                    os.write(device, _ANSWER.pack(_ANSWER.size + len(body), error, unique) + body)


@contextlib.contextmanager
def hung_directory(directory: Path) -> Iterator[Path]:
    """Mount a file system at ``directory`` that never replies, like a network file system without its server."""
    with _mounted(directory):
        yield directory


@contextlib.contextmanager
def _mounted(directory: Path) -> Iterator[int]:
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"slow", os.fsencode(directory), b"fuse", 0, options) != 0:
        os.close(device)
        raise OSError(ctypes.get_errno(), "no file system can be mounted")
    try:
        yield device
    finally:
        libc.umount2(os.fsencode(directory), _DETACH)
        os.close(device)  # closes the last descriptor, so that waiting processes get an error


@contextlib.contextmanager
def slow_file(directory: Path, may_close: threading.Event | None = None) -> Iterator[Path]:
    """Mount the file system at ``directory`` and provide the file's path; raises OSError if it cannot be mounted.

    A process that closes the file waits until ``may_close`` is set."""
    with _mounted(directory) as device:
        server = threading.Thread(target=serve, args=(device, may_close), daemon=True)
        server.start()
        try:
            yield directory / NAME.decode()
        finally:
            ctypes.CDLL(None).umount2(os.fsencode(directory), _DETACH)
            with contextlib.suppress(OSError):
                Path(f"/sys/fs/fuse/connections/{directory.stat().st_dev}/abort").write_text("1")
            server.join(2 * READ_SECONDS)
