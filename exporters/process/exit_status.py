"""When and how a process that is not our child ended.

Two ways, both tried: PIDFD_GET_INFO with PIDFD_INFO_EXIT (Linux 6.15, include/uapi/linux/pidfd.h) answers once the
parent has reaped it; before that, field 52 of /proc/PID/stat answers while it is a zombie, with ptrace rights.
"""

from __future__ import annotations

import fcntl
import os
import struct

from agent.sdk.ranks import ExitStatus, ProcessKey
from agent.sdk.system import ProcFS

_INFO_BYTES = 64  # PIDFD_INFO_SIZE_VER0
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60


def open_pidfd(proc: ProcFS, key: ProcessKey) -> int | OSError | None:
    """A pidfd of the process itself; None when it has left (its pid may be reused); the error where there is none."""
    try:
        pidfd = os.pidfd_open(key.pid)
    except OSError as error:
        return error if _is_there(proc, key) else None
    if _is_there(proc, key):  # only now is the pid held fast
        return pidfd
    os.close(pidfd)
    return None


def _is_there(proc: ProcFS, key: ProcessKey) -> bool:
    try:
        stat = proc.stat(key.pid)
    except OSError:  # out of descriptors: it is tried again with the next look
        return False
    return stat is not None and stat.key == key


def from_pidfd(pidfd: int) -> ExitStatus | None:
    """The status by the kernel's own record; None while it is not reaped, or where the kernel has no such answer."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # not reaped yet, or no such ioctl; whatever else: the caller counts what it cannot learn
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    (status,) = struct.unpack_from("i", info, _EXIT_CODE_OFFSET)
    return ExitStatus.from_wait(status)


def from_zombie(proc: ProcFS, key: ProcessKey, may_ptrace: bool) -> ExitStatus | None:
    """Return the exit status of a zombie; None when it is gone, or the agent may not read it.

    ``may_ptrace`` must be False where its environment could not be read: the kernel then shows 0 for every status.
    """
    if not may_ptrace:
        return None
    try:
        stat = proc.stat(key.pid)
    except OSError:  # out of descriptors: the caller asks again, and counts what it cannot learn
        return None
    if stat is None or stat.key != key or stat.state not in "ZX":
        return None
    return ExitStatus.from_wait(stat.exit_code)
