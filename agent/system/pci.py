"""Where a device is in the PCI tree, from sysfs. Blocking."""

import os
import re
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


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
