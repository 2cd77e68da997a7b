"""Small files of sysfs, and where a device is in the PCI tree. Blocking; what cannot be read is None."""

import os
import re
from pathlib import Path

MAX_BYTES = 4096  # An attribute's text is one page at most (sysfs of the kernel)
MAX_ENTRIES = 4096
_LEAST, _MOST = -(2**63), 2**64 - 1  # Whole numbers of the kernel have 64 bits
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read_text(path: Path) -> str | None:
    """Return the stripped text of an attribute; None when there is none, or its driver refuses."""
    raw = read_bytes(path)
    return None if raw is None else raw.decode("utf-8", "replace").strip()


def read_bytes(path: Path) -> bytes | None:
    """What an attribute holds, likewise."""
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
    """Return the whole number in an attribute, decimal or hex with 0x; None when it holds none."""
    text = read_text(path)
    if text is None:
        return None
    try:
        number = int(text, 16 if text.startswith("0x") else 10)
    except ValueError:
        return None
    return number if _LEAST <= number <= _MOST else None


def entries(path: Path) -> list[str]:
    """Return the names in a folder, in order; none when it is not there."""
    try:
        return sorted(os.listdir(path))[:MAX_ENTRIES]
    except OSError:
        return []


def pci_address(text: str) -> str:
    """An address as sysfs writes it: NVML's has eight digits of domain and capital letters; empty when it is none."""
    lowered = text.strip().lower()
    if not _ADDRESS.fullmatch(lowered):
        return ""
    domain, _, rest = lowered.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def pci_path(device: Path) -> tuple[str, ...]:
    """The root, the bridges and the device itself, from the target of a link such as /sys/bus/pci/devices/ADDRESS."""
    try:
        parts = Path(os.path.realpath(device, strict=True)).parts
    except OSError:
        return ()
    return tuple(part for part in parts if _ADDRESS.fullmatch(part) or _ROOT.fullmatch(part))
