"""Network devices with hardware behind them, from /sys/class/net: state, errors, carrier changes; speed and traffic.

Bridges, tunnels and the ends of pods' cables are not among them: they come and go by the hundred and break nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.api import ExporterConfig, Family, Metric, NoData, Roots, Spec, SysfsExporter, sysfs

INTERVAL_SECONDS = 15.0
MAX_DEVICES = 128

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
_DEVICE = ("device",)
_EACH = "1 per device"
_IF_ASKED = "1 per device, only with all_values"

UP = Family(
    "rankwatch_netdev_up",
    "gauge",
    "1 while the device's operational state is up, else 0; absent where it is not told.",
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
_DETAILS = frozenset({SPEED.name, MTU.name, RECEIVED.name, SENT.name, SEND_ERRORS.name, SEND_DROPS.name})
"""What neither rules nor dashboards ask for: only with all_values."""
_MEGABIT_BYTES = 1e6 / 8


class NetdevConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``all_values``: speed, MTU, traffic and what is lost on its way out, too: 6 more per device."""

    all_values: bool = False


class NetworkDevice(msgspec.Struct, frozen=True):
    """A device's name, and its values by the family that shows them; what cannot be read is not there."""

    name: str
    values: dict[str, float]


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
    return NetworkDevice(name, values)


class NetdevExporter(SysfsExporter[NetdevConfig, tuple[NetworkDevice, ...]]):
    """See the module."""

    def read(self, roots: Roots) -> tuple[NetworkDevice, ...]:
        """Every device; NoData when there is none."""
        devices = read_devices(roots.sys)
        if not devices:
            raise NoData
        return devices

    def render(self, found: tuple[NetworkDevice, ...]) -> Iterable[Metric]:
        """A series for each value that was read."""
        hidden = frozenset() if self.config.all_values else _DETAILS
        rows = {family.name: family.rows() for family in FAMILIES if family.name not in hidden}
        for device in found:
            for family, value in device.values.items():
                if family in rows:
                    rows[family].add((device.name,), value)
        return [each.metric for each in rows.values()]


SPEC = Spec(
    name="netdev",
    config=NetdevConfig,
    build=NetdevExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=2_000,
)
