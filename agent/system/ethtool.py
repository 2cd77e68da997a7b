"""The kernel's ioctl for network devices (SIOCETHTOOL of linux/ethtool.h), as far as netlink does not do. Blocking."""

import ctypes
import fcntl
import mmap
import os
import socket
import struct

ROOM_BYTES = 1024 * 1024  # For 131,071 numbers; the drivers with most have some 20,000
_REQUEST = 0x8946
_GET_STATISTICS = struct.pack("=II", 0x1D, 0)
_NAME_BYTES = 16
_FORBIDDEN = 0


def refresh_statistics(device: str) -> None:
    """Have a device's driver read all its statistics now; OSError where it has none. The numbers are thrown away.

    The kernel writes as many as the driver has, whatever room there is, so what follows the room may not be written to:
    too many are an error, and never another's memory.
    """
    name = device.encode()
    if not 0 < len(name) < _NAME_BYTES:
        raise ValueError("no name of a network device")
    before = -ROOM_BYTES % mmap.PAGESIZE  # so that the room ends where its last page does
    memory = mmap.mmap(-1, before + ROOM_BYTES + mmap.PAGESIZE)
    room = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + before
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(room + ROOM_BYTES), ctypes.c_size_t(mmap.PAGESIZE), _FORBIDDEN) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory[before : before + len(_GET_STATISTICS)] = _GET_STATISTICS
    request = struct.pack(f"{_NAME_BYTES}sP16x", name, room)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        fcntl.ioctl(channel, _REQUEST, request)
