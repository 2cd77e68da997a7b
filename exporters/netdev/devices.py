"""Network devices in sysfs (/sys/class/net), and their metric families."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from agent.sdk.metrics import Family
from agent.sdk.system import sysfs

MAX_DEVICES = 128

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")


def _counter(name: str, text: str) -> Family:
    return Family(name, "counter", text, ("device",), "1 per device")


CARRIER_CHANGES = _counter("rankwatch_netdev_carrier_changes_total", "Times that the link went up or down.")
RECEIVE_ERRORS = _counter("rankwatch_netdev_receive_errors_total", "Packets received with an error.")
RECEIVE_DROPS = _counter(
    "rankwatch_netdev_receive_dropped_total", "Packets received and dropped because a buffer was full."
)
_FILES = {
    CARRIER_CHANGES: "carrier_changes",
    RECEIVE_ERRORS: "statistics/rx_errors",
    RECEIVE_DROPS: "statistics/rx_dropped",
}
FAMILIES = tuple(_FILES)


class NetworkDevice(msgspec.Struct, frozen=True):
    """A device: its name, its readable values by family, and its driver (empty if unknown)."""

    name: str
    values: dict[Family, float]
    driver: str = ""


def read_devices(sys_root: Path) -> tuple[NetworkDevice, ...]:
    """Return every device with its own hardware, in the order of their names. Blocking."""
    root = sys_root / "class/net"
    names = [name for name in sysfs.entries(root) if _NAME.fullmatch(name) and (root / name / "device").exists()]
    return tuple(_device(root / name, name) for name in names[:MAX_DEVICES])


def _device(folder: Path, name: str) -> NetworkDevice:
    numbers = {family: sysfs.read_number(folder / file) for family, file in _FILES.items()}
    values = {family: float(number) for family, number in numbers.items() if number is not None}
    try:
        driver = (folder / "device/driver").readlink().name
    except OSError:
        driver = ""
    return NetworkDevice(name, values, driver)
