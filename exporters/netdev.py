"""Network devices with their own hardware: errors, carrier changes and pause frames.

Bridges, tunnels and the veth devices of pods are left out: there are hundreds, they change often, and they have no
hardware that can fail. Ethtool netlink gives the link's pause frames, the kernel's DCB the pause frames of each
priority (PFC). Neither query needs a privilege. A device with pause frames is congested: its traffic waits.
"""

import errno
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import HARDWARE_RIGHTS, Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.metrics import Family, Metric
from agent.sdk.system import ethtool, netlink, sysfs

MAX_DEVICES = 128
INTERVAL_SECONDS = 15.0
UNSUPPORTED_SECONDS = 3600.0
"""Time until the next query to a device without support: an updated driver may support the query."""
FAILED_SECONDS = 60.0  # Time until the next query to a device whose query failed
REFRESH_SECONDS = 60.0  # The time between two refreshes of the statistics of a driver in CACHING_DRIVERS
CACHING_DRIVERS = frozenset({"mlx5_core"})
"""Drivers that update their counts by priority only when all statistics are read."""
MAX_COUNT = 2**63
PRIORITIES = 8
_NAME = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")

NOTE = "pause frames unavailable: they need netlink"
# fmt: off
FRAMES = Family("rankwatch_netdev_pause_frames_total", "counter",
    "Pause frames by direction: transmit (this device was full) or receive (its peer was full). priority: the PFC "
    "priority, empty for the whole link. A priority has series while PFC is on for it, or after its first pause frame.",
    ("device", "direction", "priority"), "2 per device and priority that is in use, for devices that report them")
# fmt: on
Count = tuple[str, str, int]  # Direction, priority, frames

_TRANSMIT, _RECEIVE = "transmit", "receive"
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOENT})

# Numbers of linux/genetlink.h, ethtool_netlink.h and dcbnl.h. The device's name is attribute 2 of a header, 1 in DCB.
_GENERIC_HEADER = struct.Struct("=BBH")
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_ETHTOOL = b"ethtool\0"
_GET_PAUSE = 21
_HEADER, _RECEIVES, _TRANSMITS, _STATISTICS = 1, 3, 4, 5
_HEADER_DEVICE, _HEADER_FLAGS = 2, 3
_WITH_STATISTICS = struct.pack("=I", 1 << 2)
_SENT_FRAMES, _RECEIVED_FRAMES = 2, 3
_GET_DCB, _GET_IEEE = 78, 21
_DCB_DEVICE, _DCB_IEEE, _DCB_PFC = 1, 13, 2
_DCB_HEADER = struct.Struct("=BBH")
_PFC = struct.Struct("=BBBxHxx8Q8Q")
"""Number of priorities, bits of the enabled priorities, two other values; frames sent and received by priority."""


def pause_request(device: str) -> bytes:
    """Return the request to ethtool for the pause settings and counts of a device's link."""
    name = netlink.attribute(_HEADER_DEVICE, device.encode() + b"\0")
    header = netlink.attribute(_HEADER, name + netlink.attribute(_HEADER_FLAGS, _WITH_STATISTICS), nested=True)
    return _GENERIC_HEADER.pack(_GET_PAUSE, 1, 0) + header


def pause_counts(answer: bytes) -> Iterator[Count]:
    """Yield the frames of the whole link from ethtool's answer, if the driver counts them."""
    settings = dict(netlink.attributes(answer[_GENERIC_HEADER.size :]))
    frames = dict(netlink.attributes(settings.get(_STATISTICS, b"")))
    for direction, count, switch in ((_TRANSMIT, _SENT_FRAMES, _TRANSMITS), (_RECEIVE, _RECEIVED_FRAMES, _RECEIVES)):
        if len(frames.get(count, b"")) == struct.calcsize("=Q"):
            (number,) = struct.unpack("=Q", frames[count])
            yield from _count_of(direction, "", number, is_on=any(settings.get(switch, b"")))


def priority_request(device: str) -> bytes:
    """Return the request to the kernel's DCB for a device."""
    return _DCB_HEADER.pack(0, _GET_IEEE, 0) + netlink.attribute(_DCB_DEVICE, device.encode() + b"\0")


def priority_counts(answer: bytes) -> Iterator[Count]:
    """Yield the frames by priority from DCB's answer, if the driver supports PFC."""
    parts = dict(netlink.attributes(answer[_DCB_HEADER.size :]))
    raw = dict(netlink.attributes(parts.get(_DCB_IEEE, b""))).get(_DCB_PFC, b"")
    if len(raw) != _PFC.size:
        return
    _, enabled, _, _, *numbers = _PFC.unpack(raw)
    for direction, counts in ((_TRANSMIT, numbers[:PRIORITIES]), (_RECEIVE, numbers[PRIORITIES:])):
        for priority, number in enumerate(counts):
            yield from _count_of(direction, str(priority), number, is_on=bool(enabled >> priority & 1))


def _count_of(direction: str, priority: str, number: int, *, is_on: bool) -> Iterable[Count]:
    return [(direction, priority, number)] if number < MAX_COUNT and (is_on or number) else []


class _PauseQuery(NamedTuple):
    """A query about a device: the protocol, and functions that return the message type, the request and the counts."""

    protocol: int
    kind: Callable[[netlink.Netlink], int]
    request: Callable[[str], bytes]
    counts: Callable[[bytes], Iterator[Count]]


def _ethtool(kernel: netlink.Netlink) -> int:
    """Return the kernel's number of the netlink family ethtool."""
    query = _GENERIC_HEADER.pack(_GET_FAMILY, 1, 0) + netlink.attribute(_FAMILY_NAME, _ETHTOOL)
    answer = dict(netlink.attributes(kernel.ask(_CONTROL, query)[_GENERIC_HEADER.size :]))
    return int.from_bytes(answer.get(_FAMILY_ID, b""), sys.byteorder)


_QUERIES = (
    _PauseQuery(netlink.GENERIC, _ethtool, pause_request, pause_counts),
    _PauseQuery(netlink.ROUTE, lambda _: _GET_DCB, priority_request, priority_counts),
)


class PauseReader:
    """Reads the pause frames of devices. Blocking; for one thread.

    ``open_channel`` opens a netlink socket of a protocol. ``refresh`` makes a device's driver read its statistics.
    """

    def __init__(
        self,
        open_channel: Callable[[int], netlink.Netlink] = netlink.open_channel,
        refresh: Callable[[str], None] = ethtool.refresh_statistics,
    ) -> None:
        self._open = open_channel
        self._refresh = refresh
        self._next_query_at: dict[tuple[str, int], float] = {}
        self._refreshed_at: dict[str, float] = {}

    def read(self, drivers: Mapping[str, str], now: float) -> dict[str, tuple[Count, ...]]:
        """Return the counts of each device that reports them. Raise OSError without netlink.

        ``drivers``: the driver of each device, by device name. ``now``: monotonic seconds.
        """
        next_queries = self._next_query_at.items()
        self._next_query_at = {key: at for key, at in next_queries if key[0] in drivers and at > now}
        self._refreshed_at = {name: at for name, at in self._refreshed_at.items() if name in drivers}
        pauses: dict[str, tuple[Count, ...]] = {}
        for query in _QUERIES:
            due = [name for name in drivers if (name, query.protocol) not in self._next_query_at]
            if due:
                with self._open(query.protocol) as kernel:
                    for name in due:
                        is_cached = query.protocol == netlink.ROUTE and drivers[name] in CACHING_DRIVERS
                        counts = self._counts(kernel, query, name, now, is_cached=is_cached)
                        pauses[name] = (*pauses.get(name, ()), *counts)
        return pauses

    def _counts(
        self, kernel: netlink.Netlink, query: _PauseQuery, device: str, now: float, *, is_cached: bool
    ) -> tuple[Count, ...]:
        try:
            if is_cached and now - self._refreshed_at.get(device, float("-inf")) >= REFRESH_SECONDS:
                self._refresh(device)
                self._refreshed_at[device] = now
            return tuple(query.counts(kernel.ask(query.kind(kernel), query.request(device))))
        except OSError as error:
            wait = UNSUPPORTED_SECONDS if error.errno in _UNSUPPORTED else FAILED_SECONDS
            self._next_query_at[device, query.protocol] = now + wait
            return ()


# fmt: off
CARRIER_CHANGES = Family("rankwatch_netdev_carrier_changes_total", "counter",
    "Number of times that the link went up or down.",
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
FAMILIES = (CARRIER_CHANGES, RECEIVE_LOSSES, FRAMES)


class NetworkDevice(msgspec.Struct, frozen=True):
    """A device: its name, its readable values by file, and its driver (empty if unknown)."""

    name: str
    values: dict[str, float]
    driver: str = ""


def read_devices(sys_root: Path) -> tuple[NetworkDevice, ...]:
    """Return the devices with their own hardware, physical functions first, then by name. Blocking."""
    root = sys_root / "class/net"
    names = [name for name in sysfs.entries(root) if _NAME.fullmatch(name) and (root / name / "device").exists()]
    names.sort(key=lambda name: (root / name / "device/physfn").exists())  # there may be hundreds of virtual functions
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
        """Prepare to read pause frames, but not with a recorded tree: netlink shows only real devices."""
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
        """Return the pause frames by device. If netlink is refused, return {} and set the front page's note."""
        if self._pauses is None:
            return {}
        try:
            return self._pauses.read(drivers, self.ctx.clock.monotonic())
        except OSError as error:
            if error.errno not in netlink.TEMPORARY:
                self._pauses = None
                self.ctx.note.say(NOTE, HARDWARE_RIGHTS)
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
                rows[FRAMES].add((device.name, direction, priority), frames)
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
