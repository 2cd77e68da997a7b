"""Read small files of sysfs, and a device's position in the PCI tree. Blocking; unreadable files give None."""

import errno
import os
import re
from pathlib import Path

MAX_BYTES = 4096  # A sysfs attribute has at most one page
MAX_ENTRIES = 4096
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1  # Integers of the kernel have 64 bits
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_text(path: Path) -> str | None:
    """Return the stripped text of an attribute; None if it is missing, or its driver refuses."""
    raw = read_bytes(path)
    return None if raw is None else raw.decode("utf-8", "replace").strip()


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of an attribute; None if it is missing, or its driver refuses."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(fd, MAX_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_number(path: Path) -> int | None:
    """Return the integer in an attribute, decimal or hex with 0x; None if it has no integer."""
    text = read_text(path)
    if text is None:
        return None
    try:
        number = int(text, 16 if text.startswith("0x") else 10)
    except ValueError:
        return None
    return number if _MIN_INTEGER <= number <= _MAX_INTEGER else None


def entries(path: Path) -> list[str]:
    """Return the sorted names in a directory; empty if it is unreadable. Raise OSError without a free descriptor."""
    try:
        return sorted(os.listdir(path))[:MAX_ENTRIES]
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return []


def pci_address(text: str) -> str:
    """Return a PCI address as sysfs writes it (NVML writes capitals and an 8-digit domain); empty if invalid."""
    lowered = text.strip().lower()
    if not _ADDRESS.fullmatch(lowered):
        return ""
    domain, _, rest = lowered.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def pci_path(device: Path) -> tuple[str, ...]:
    """Return the PCI root, bridges and device in the target of a link such as /sys/bus/pci/devices/ADDRESS."""
    try:
        parts = Path(os.path.realpath(device, strict=True)).parts
    except OSError:
        return ()
    return tuple(part for part in parts if _ADDRESS.fullmatch(part) or _ROOT.fullmatch(part))
