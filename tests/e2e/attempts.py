"""A program that tries each way into another process, and prints the kernel's replies as JSON.

Its argument is the file in which ``attempted.py`` writes the addresses of the attacked process. A reply is `done` or
the name of an errno."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS: dict[str, tuple[int, int]] = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "setns": (308, 268),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""Numbers of system calls on x86_64 and on aarch64."""
AT_FDCWD, SEIZE, COLD, KCMP_VM, CLONE_NEWUSER, GET_KEYRING, USER_MODE_ONLY = -100, 0x4206, 20, 1, 0x10000000, 0, 1
SESSION_KEYRING, PROG_LOAD, SOFTWARE_EVENT, EXCLUDE_KERNEL, LARGE_HANDLE = -3, 5, 1, 0x60, 128
KEPT = b"harmless", b"written!"
"""The eight bytes at the address in the attacked process, before and after a write."""


class Attacked(NamedTuple):
    """The attacked process: its pid, the address of eight bytes, its descriptor of a memory file (memfd_create).

    ``files``: a directory, as the process sees it, with a file for root only and a file for all users."""

    pid: int
    address: int
    memory_file: int
    files: str

    @property
    def proc(self) -> str:
        """Return the process's directory in /proc."""
        return f"/proc/{self.pid}"


class Vector(ctypes.Structure):
    """An iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def call(name: str, *arguments: Any) -> int:
    """Make a system call by its number; raises the kernel's OSError."""
    number = NUMBERS[name][platform.machine() == "aarch64"]
    passed = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    answer = int(LIBC.syscall(ctypes.c_long(number), *passed))
    if answer < 0:
        raise OSError(ctypes.get_errno(), name)
    return answer


def memory(name: str, attacked: Attacked) -> None:
    """Copy eight bytes between the attacked process and this one."""
    ours = ctypes.create_string_buffer(KEPT[1], 8)
    local, remote = Vector(ctypes.addressof(ours), 8), Vector(attacked.address, 8)
    call(name, attacked.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


def advised(attacked: Attacked) -> None:
    """Page out the attacked process's memory."""
    remote = Vector(attacked.address & ~4095, 4096)
    call("process_madvise", call("pidfd_open", attacked.pid, 0), ctypes.byref(remote), 1, COLD, 0)


def counted(attacked: Attacked) -> None:
    """Count events of the attacked process."""
    event = ctypes.create_string_buffer(128)
    event[0:8] = SOFTWARE_EVENT.to_bytes(4, "little") + (128).to_bytes(4, "little")
    event[40] = EXCLUDE_KERNEL
    call("perf_event_open", event, attacked.pid, -1, -1, 0)


def by_handle(_attacked: Attacked) -> None:
    """Open a file by its handle in the file system, without a path."""
    handle = ctypes.create_string_buffer(8 + LARGE_HANDLE)
    handle[0:4] = LARGE_HANDLE.to_bytes(4, "little")
    mount = ctypes.c_int()
    call("name_to_handle_at", AT_FDCWD, ctypes.c_char_p(b"/run"), handle, ctypes.byref(mount), 0)
    call("open_by_handle_at", os.open("/run", os.O_RDONLY), handle, os.O_RDONLY)


def opened(path: str, flags: int) -> None:
    """Open a file, and read from it or write to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        if flags & (os.O_WRONLY | os.O_RDWR):
            return
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def memory_read(attacked: Attacked) -> None:
    """Read the attacked process's memory as a file."""
    descriptor = os.open(f"{attacked.proc}/mem", os.O_RDONLY)
    if os.pread(descriptor, 8, attacked.address) not in KEPT:
        raise OSError(errno.EBADMSG, "other bytes")


ATTEMPTS: dict[str, Callable[[Attacked], Any]] = {
    "process_vm_writev": lambda it: memory("process_vm_writev", it),
    "process_vm_readv": lambda it: memory("process_vm_readv", it),
    "process_madvise": advised,
    "process_mrelease": lambda it: call("process_mrelease", call("pidfd_open", it.pid, 0), 0),
    "kcmp": lambda it: call("kcmp", os.getpid(), it.pid, KCMP_VM, 0, 0),
    "pidfd_getfd": lambda it: call("pidfd_getfd", call("pidfd_open", it.pid, 0), it.memory_file, 0),
    "ptrace": lambda it: call("ptrace", SEIZE, it.pid, 0, 0),
    "perf_event_open": counted,
    "bpf": lambda _: call("bpf", PROG_LOAD, 0, 1 << 20),
    "userfaultfd": lambda _: call("userfaultfd", USER_MODE_ONLY),
    "keyctl": lambda _: call("keyctl", GET_KEYRING, SESSION_KEYRING, 0),
    "add_key": lambda _: call("add_key", b"user", b"rankwatch", b"x", 1, SESSION_KEYRING),
    "request_key": lambda _: call("request_key", b"user", b"rankwatch", None, SESSION_KEYRING),
    "io_uring_setup": lambda _: call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
    "open_by_handle_at": by_handle,
    "unshare": lambda _: call("unshare", CLONE_NEWUSER),
    "setns": lambda _: call("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0),
    "mount": lambda _: call("mount", b"none", b"/opt", b"tmpfs", 0, 0),
    "kill": lambda it: os.kill(it.pid, 0),
    "setpriority": lambda it: os.setpriority(os.PRIO_PROCESS, it.pid, 5),
    "prlimit": lambda it: resource.prlimit(it.pid, resource.RLIMIT_CORE, (0, 0)),
    "setuid": lambda _: os.setuid(0),
    "memory, written as a file": lambda it: opened(f"{it.proc}/mem", os.O_RDWR),
    "memory, read as a file": memory_read,
    "environment": lambda it: opened(f"{it.proc}/environ", os.O_RDONLY),
    "memory file, written": lambda it: opened(f"{it.proc}/fd/{it.memory_file}", os.O_RDWR),
    "root's file, written": lambda it: opened(f"{it.files}/roots", os.O_WRONLY),
    "root's file by its root, written": lambda it: opened(f"{it.proc}/root{it.files}/roots", os.O_WRONLY),
    "root's file by its root, read": lambda it: opened(f"{it.proc}/root{it.files}/roots", os.O_RDONLY),
    "all users' file, written": lambda it: opened(f"{it.files}/everybodys", os.O_WRONLY),
    "all users' file by its root, written": lambda it: opened(f"{it.proc}/root{it.files}/everybodys", os.O_WRONLY),
}


def answer(attempt: Callable[[Attacked], Any], attacked: Attacked) -> str:
    """Return the kernel's reply to an attempt."""
    try:
        attempt(attacked)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def main() -> None:
    """Make all attempts, each in its own process, because some change the result of the next."""
    attacked = Attacked(**json.loads(Path(sys.argv[1]).read_text()))
    answers = {}
    for name, attempt in ATTEMPTS.items():
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writes, answer(attempt, attacked).encode())
            os._exit(0)
        os.close(writes)
        os.waitpid(child, 0)
        answers[name] = os.read(reads, 64).decode()
        os.close(reads)
    print(json.dumps(answers))  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
