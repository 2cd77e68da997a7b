"""Reads sysfs in its own thread, compares the devices with the baseline, and writes checks to the health ledger."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from agent.sdk.exporter import MAX_SECTION_BYTES, Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.files import FileVersion, read_changed
from agent.sdk.hardware import Nic
from agent.sdk.metrics import Metric
from agent.sdk.system import netlink
from exporters.rdma.baseline import Baseline, ignore, learn, levels
from exporters.rdma.families import FAMILIES, Counts, RdmaSnapshot, read_resources, render
from exporters.rdma.switches import MAX_BYTES, MAX_LLDP_BYTES, PortName, read_neighbours, read_wiring
from exporters.rdma.tree import hidden_functions, read_devices

INTERVAL_SECONDS = 15.0
MAX_IGNORED = 128
MAX_LOGGED_LINES = 8
NEIGHBOURS_SECONDS = 4 * 3600.0
"""The greatest age of the file with lldpd's neighbours, in seconds.

A service writes it every hour. An older file means that the service has stopped.
"""

T = TypeVar("T")
_Path = Annotated[str, msgspec.Meta(max_length=4096)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class RdmaConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``ignore_devices``: names of devices without series and checks; none of them counts as a GPU's NIC.

    ``all_counters``: export every counter, 40 to 80 per port, and for each device the number of RDMA objects in use
    (such as QPs and MRs). Otherwise only counters of faults and congestion are exported.
    ``switch_ports``: a file that maps each port to its switch and switch port (see switches.py).
    ``lldp_neighbors``: a file with lldpd's neighbours (see switches.py), for ports that ``switch_ports`` does not name.
    """

    ignore_devices: Annotated[list[_Name], msgspec.Meta(max_length=MAX_IGNORED)] = msgspec.field(default_factory=list)
    all_counters: bool = False
    switch_ports: _Path = ""
    lldp_neighbors: _Path = ""


class RdmaExporter(SysfsExporter[RdmaConfig, RdmaSnapshot]):
    """Exports RDMA devices and checks them. The thread changes the baseline; the event loop reads it between polls."""

    def __init__(self, config: RdmaConfig) -> None:
        super().__init__(config)
        self._baseline = Baseline()
        self._switches: Mapping[PortName, PortName] = {}
        self._neighbours: Mapping[str, PortName] = {}
        self._versions: dict[str, FileVersion] = {}
        self._unreadable: set[str] = set()
        self._counts_resources = config.all_counters

    async def start(self, ctx: Context) -> None:
        """Restore the baseline of this boot."""
        await super().start(ctx)
        self._baseline = ctx.state.restore(Baseline, ctx.log) or Baseline()
        ignore(self._baseline, self.config.ignore_devices)

    def read(self, roots: Roots) -> RdmaSnapshot:
        """Read every device and the site's files, and compare the devices with the baseline."""
        ignored, functions = frozenset(self.config.ignore_devices), tuple(self._baseline.functions)
        devices = tuple(device for device in read_devices(roots.sys) if device.name not in ignored)
        self._read_wiring()
        if learn(self._baseline, devices, hidden_functions(roots.sys, functions)):
            missing = sorted(expected.device for expected in self._baseline.functions.values() if expected.missing)
            self.ctx.log.warning("RDMA devices have vanished: {missing}", missing=",".join(missing))
        resources = self._resources(roots)
        return RdmaSnapshot(devices, self.config.all_counters, self._switches, self._neighbours, resources)

    async def update(self) -> None:
        """Read every device. Raise NoData when no device was seen since the boot."""
        self.shown = await self.look()
        self.ctx.checks.report_all(levels(self._baseline, self.shown.devices))
        expected = self._baseline.functions.items()  # a missing device stays the NIC of its GPU
        self.ctx.hardware.observe_nics(Nic(nic.device, pci, nic.pci_path, nic.numa) for pci, nic in expected)
        self.ctx.state.publish(msgspec.msgpack.encode(self._baseline))
        if not self._baseline.functions and not self.shown.devices:
            raise NoData

    def render(self, snapshot: RdmaSnapshot) -> Iterable[Metric]:
        """Return the metric families of a snapshot. Pure."""
        return render(snapshot)

    def _resources(self, roots: Roots) -> Counts:
        """Return the number of RDMA objects in use. A kernel that refuses the query is not queried again."""
        if not self._counts_resources or roots.sys != Path("/sys"):  # a recorded tree has other devices
            return {}
        try:
            return read_resources()
        except OSError as error:
            self._counts_resources = error.errno is None or error.errno in netlink.TEMPORARY  # None: no whole answer
            self.ctx.log.info("RDMA resources unavailable: the netlink query to the kernel failed", error=error)
            return {}

    def _read_wiring(self) -> None:
        """Read the site's files that changed. An unreadable or old ``lldp_neighbors`` counts as empty."""
        neighbours = self._changed("lldp_neighbors", self.config.lldp_neighbors, MAX_LLDP_BYTES, read_neighbours)
        if neighbours is not None:
            self._neighbours = neighbours
        _, _, written_ns = self._versions.get("lldp_neighbors", (0, 0, 0))
        if self.ctx.clock.time() - written_ns / 1e9 > NEIGHBOURS_SECONDS:
            self._neighbours = {}
        read = partial(read_wiring, hostname=self.ctx.hostname)
        wiring = self._changed("switch_ports", self.config.switch_ports, MAX_BYTES, read)
        if wiring is not None:
            self._switches = wiring.switches
            if wiring.bad_lines:
                lines = ",".join(map(str, wiring.bad_lines[:MAX_LOGGED_LINES]))
                self.ctx.log.warning("invalid lines of switch_ports are ignored: {lines}", lines=lines)

    def _changed(self, key: str, path: str, max_bytes: int, read: Callable[[bytes], T]) -> T | None:
        """Return the content of a changed file, else None. Log an unreadable file once."""
        try:
            changed = read_changed(path, max_bytes, self._versions.get(key)) if path else None
            self._unreadable.discard(key)
            if changed is None:
                return None
            self._versions[key], raw = changed
            if len(raw) > max_bytes:
                raise ValueError(f"it is larger than {max_bytes} bytes")
            return read(raw)
        except (OSError, ValueError) as error:
            if key not in self._unreadable:
                self.ctx.log.warning("cannot read the file of {key}", key=key, error=error)
            if isinstance(error, OSError):
                self._unreadable.add(key)
                self._versions.pop(key, None)
            return None


SPEC = Spec(
    name="rdma",
    config=RdmaConfig,
    build=RdmaExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    checkpoint_bytes=MAX_SECTION_BYTES,
    series_cap=20_000,
    keeps_past=True,
)
