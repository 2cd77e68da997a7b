"""Call SIOCETHTOOL (linux/ethtool.h), the ioctl of network devices, where netlink has no equivalent. Blocking."""

import ctypes
import fcntl
import mmap
import os
import socket
import struct

BUFFER_BYTES = 1024 * 1024  # For 131,071 numbers; no known driver has more than about 20,000
_REQUEST = 0x8946
_GET_STATISTICS = struct.pack("=II", 0x1D, 0)
_NAME_BYTES = 16
_FORBIDDEN = 0


def refresh_statistics(device: str) -> None:
    """Make a device's driver read all its statistics now, and discard them. Raises OSError if the driver has none.

    The kernel writes as many numbers as the driver has, whatever the buffer's size. So the page after the buffer is not
    writable: too many numbers raise an error instead of overwriting other memory.
    """
    padding = -BUFFER_BYTES % mmap.PAGESIZE  # so that the buffer ends with a page
    memory = mmap.mmap(-1, padding + BUFFER_BYTES + mmap.PAGESIZE)
    buffer = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + padding
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(buffer + BUFFER_BYTES), ctypes.c_size_t(mmap.PAGESIZE), _FORBIDDEN) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory[padding : padding + len(_GET_STATISTICS)] = _GET_STATISTICS
    request = struct.pack(f"{_NAME_BYTES}sP16x", device.encode(), buffer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        fcntl.ioctl(channel, _REQUEST, request)
