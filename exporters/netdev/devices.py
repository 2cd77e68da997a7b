"""What sysfs says of network devices (/sys/class/net), and its metric families."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from agent.sdk.metrics import Family
from agent.sdk.system import sysfs

MAX_DEVICES = 128

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
_DEVICE = ("device",)
_EACH = "1 per device"
_IF_ASKED = "1 per device, only with all_values"

UP = Family(
    "rankwatch_netdev_up",
    "gauge",
    "1 while the device's operational state is up, else 0; absent where it is not given.",
    _DEVICE,
    _EACH,
)
CARRIER_CHANGES = Family(
    "rankwatch_netdev_carrier_changes_total", "counter", "Times that the link came or went.", _DEVICE, _EACH
)
SPEED = Family(
    "rankwatch_netdev_speed_bytes_per_second",
    "gauge",
    "The speed that the link has negotiated; absent while there is none.",
    _DEVICE,
    _IF_ASKED,
)
MTU = Family("rankwatch_netdev_mtu_bytes", "gauge", "The largest packet that the device sends.", _DEVICE, _IF_ASKED)
RECEIVED = Family("rankwatch_netdev_received_bytes_total", "counter", "Bytes received.", _DEVICE, _IF_ASKED)
SENT = Family("rankwatch_netdev_transmitted_bytes_total", "counter", "Bytes sent.", _DEVICE, _IF_ASKED)
RECEIVE_ERRORS = Family(
    "rankwatch_netdev_receive_errors_total", "counter", "Packets received with an error.", _DEVICE, _EACH
)
SEND_ERRORS = Family(
    "rankwatch_netdev_transmit_errors_total", "counter", "Packets not sent for an error.", _DEVICE, _IF_ASKED
)
RECEIVE_DROPS = Family(
    "rankwatch_netdev_receive_dropped_total",
    "counter",
    "Packets received and dropped for want of room.",
    _DEVICE,
    _EACH,
)
SEND_DROPS = Family(
    "rankwatch_netdev_transmit_dropped_total", "counter", "Packets dropped on their way out.", _DEVICE, _IF_ASKED
)
FAMILIES = (
    UP,
    CARRIER_CHANGES,
    SPEED,
    MTU,
    RECEIVED,
    SENT,
    RECEIVE_ERRORS,
    SEND_ERRORS,
    RECEIVE_DROPS,
    SEND_DROPS,
)
_NUMBERS = {
    CARRIER_CHANGES.name: "carrier_changes",
    MTU.name: "mtu",
    RECEIVED.name: "statistics/rx_bytes",
    SENT.name: "statistics/tx_bytes",
    RECEIVE_ERRORS.name: "statistics/rx_errors",
    SEND_ERRORS.name: "statistics/tx_errors",
    RECEIVE_DROPS.name: "statistics/rx_dropped",
    SEND_DROPS.name: "statistics/tx_dropped",
}
DETAILS = frozenset({SPEED.name, MTU.name, RECEIVED.name, SENT.name, SEND_ERRORS.name, SEND_DROPS.name})
"""What neither rules nor dashboards ask for: only with all_values."""
_MEGABIT_BYTES = 1e6 / 8


class NetworkDevice(msgspec.Struct, frozen=True):
    """A device's name, and its values by the family that shows them; what cannot be read is not there.

    ``driver``: its name, empty where that is not known.
    """

    name: str
    values: dict[str, float]
    driver: str = ""


def read_devices(sys_root: Path) -> tuple[NetworkDevice, ...]:
    """Every device with hardware behind it, by name (blocking)."""
    root = sys_root / "class/net"
    names = [name for name in sysfs.entries(root) if _NAME.fullmatch(name) and (root / name / "device").exists()]
    return tuple(_device(root / name, name) for name in names[:MAX_DEVICES])


def _device(folder: Path, name: str) -> NetworkDevice:
    values = {}
    state = sysfs.read_text(folder / "operstate")
    if state not in (None, "", "unknown"):
        values[UP.name] = float(state == "up")
    speed = sysfs.read_number(folder / "speed")
    if speed is not None and speed > 0:  # -1, or an error, where there is no link
        values[SPEED.name] = speed * _MEGABIT_BYTES
    for family, file in _NUMBERS.items():
        number = sysfs.read_number(folder / file)
        if number is not None:
            values[family] = float(number)
    return NetworkDevice(name, values, _driver(folder))


def _driver(folder: Path) -> str:
    try:
        return (folder / "device/driver").readlink().name
    except OSError:
        return ""
