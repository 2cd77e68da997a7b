"""Reads network devices in sysfs (/sys/class/net), in its own thread."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.metrics import Family, Metric
from agent.sdk.system import sysfs
from exporters.netdev import pause
from exporters.netdev.pause import Count, PauseReader

MAX_DEVICES = 128

_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
INTERVAL_SECONDS = 15.0


# fmt: off
CARRIER_CHANGES = Family("rankwatch_netdev_carrier_changes_total", "counter",
    "Times that the link went up or down.",
    ("device",), "1 per device")
RECEIVE_LOSSES = Family("rankwatch_netdev_receive_losses_total", "counter",
    "Received packets that were lost, by reason: error, or dropped because a buffer was full.",
    ("device", "reason"), "2 per device")
# fmt: on
_FILES: Mapping[str, tuple[Family, tuple[str, ...]]] = {
    "carrier_changes": (CARRIER_CHANGES, ()),
    "statistics/rx_errors": (RECEIVE_LOSSES, ("error",)),
    "statistics/rx_dropped": (RECEIVE_LOSSES, ("dropped",)),
}
"""The families of a device's files, and their further labels."""
FAMILIES = (CARRIER_CHANGES, RECEIVE_LOSSES, pause.FRAMES)


class NetworkDevice(msgspec.Struct, frozen=True):
    """A device: its name, its readable values by file, and its driver (empty if unknown)."""

    name: str
    values: dict[str, float]
    driver: str = ""


def read_devices(sys_root: Path) -> tuple[NetworkDevice, ...]:
    """Return every device with its own hardware, in the order of their names. Blocking."""
    root = sys_root / "class/net"
    names = [name for name in sysfs.entries(root) if _NAME.fullmatch(name) and (root / name / "device").exists()]
    return tuple(_device(root / name, name) for name in names[:MAX_DEVICES])


def _device(folder: Path, name: str) -> NetworkDevice:
    numbers = {file: sysfs.read_number(folder / file) for file in _FILES}
    values = {file: float(number) for file, number in numbers.items() if number is not None}
    try:
        driver = (folder / "device/driver").readlink().name
    except OSError:
        driver = ""
    return NetworkDevice(name, values, driver)


class NetdevConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The exporter has no options of its own."""


class NetdevSnapshot(msgspec.Struct, frozen=True):
    """The devices, and their pause frames by device name."""

    devices: tuple[NetworkDevice, ...]
    pauses: dict[str, tuple[Count, ...]]


class NetdevExporter(SysfsExporter[NetdevConfig, NetdevSnapshot]):
    """Exports network devices and their pause frames."""

    _pauses: PauseReader | None = None

    async def start(self, ctx: Context) -> None:
        """Prepare to read pause frames: netlink shows the kernel's real devices, not those of a recorded tree."""
        await super().start(ctx)
        if ctx.roots.sys == Path("/sys"):
            self._pauses = PauseReader()

    def read(self, roots: Roots) -> NetdevSnapshot:
        """Read every device. Raise NoData without any device."""
        devices = read_devices(roots.sys)
        if not devices:
            raise NoData
        return NetdevSnapshot(devices, self._read_pauses({device.name: device.driver for device in devices}))

    def _read_pauses(self, drivers: dict[str, str]) -> dict[str, tuple[Count, ...]]:
        """Return the pause frames by device. If netlink is refused, return none and set the note of the front page."""
        if self._pauses is None:
            return {}
        try:
            return self._pauses.read(drivers, self.ctx.clock.monotonic())
        except OSError as error:
            self._pauses = None
            self.ctx.note.say(pause.NOTE)
            self.ctx.log.info("pause frames unavailable: the netlink query to the kernel failed", error=error)
            return {}

    def render(self, snapshot: NetdevSnapshot) -> Iterable[Metric]:
        """Return the families, with one series for each value that was read."""
        rows = {family: family.rows() for family in FAMILIES}
        for device in snapshot.devices:
            for file, value in device.values.items():
                family, further = _FILES[file]
                rows[family].add((device.name, *further), value)
            for direction, priority, frames in snapshot.pauses.get(device.name, ()):
                rows[pause.FRAMES].add((device.name, direction, priority), frames)
        return [row.metric for row in rows.values()]


SPEC = Spec(
    name="netdev",
    config=NetdevConfig,
    build=NetdevExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=4_000,
    keeps_past=True,
)
