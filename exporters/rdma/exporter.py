"""The exporter: looks at sysfs in a thread of its own, compares, and tells the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.hardware import CheckState, Nic, Subject
from agent.sdk.metrics import Metric
from exporters.rdma.baseline import Baseline, ignore, judge, learn
from exporters.rdma.families import FAMILIES, RdmaSnapshot, render
from exporters.rdma.lldp import MAX_LLDP_BYTES, read_neighbours
from exporters.rdma.resources import Counts, read_resources
from exporters.rdma.switches import MAX_BYTES, Place, SiteFile, read_wiring
from exporters.rdma.tree import RdmaDevice, hidden_functions, read_devices

INTERVAL_SECONDS = 15.0


MAX_IGNORED = 128
MAX_LINES_SAID = 8
NEIGHBOURS_SECONDS = 4 * 3600.0
"""What lldpd has heard is written every hour; an older file is of a service that has stopped."""

T = TypeVar("T")
_Path = Annotated[str, msgspec.Meta(max_length=4096)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class RdmaConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``ignore_devices``: the names of those to have no series, not to be missed, and to be no GPU's NIC.

    ``all_counters``: a series of every counter, 40 to 80 per port, not only of those that tell of faults.
    ``switch_ports``: a file that says which port of which switch each port is connected to (switches.py here);
    ``lldp_neighbors``: one with what lldpd has heard (lldp.py here), for ports that the first does not name.
    """

    ignore_devices: Annotated[list[_Name], msgspec.Meta(max_length=MAX_IGNORED)] = msgspec.field(default_factory=list)
    all_counters: bool = False
    switch_ports: _Path = ""
    lldp_neighbors: _Path = ""


class RdmaExporter:
    """See the package."""

    def __init__(self, config: RdmaConfig) -> None:
        self._config = config
        self._devices: tuple[RdmaDevice, ...] = ()
        self._baseline = Baseline()
        self._switches: Mapping[Place, Place] = {}
        self._neighbours: Mapping[str, Place] = {}
        self._asks_for_resources = config.all_counters
        self._resources: Counts = {}

    async def start(self, ctx: Context) -> None:
        """Take back what was learnt since the boot."""
        self._ctx = ctx
        self._thread = ctx.thread("rdma")
        self._baseline = ctx.state.restore(Baseline, ctx.log) or Baseline()
        ignore(self._baseline, self._config.ignore_devices)
        self._wiring = SiteFile(
            self._config.switch_ports, lambda raw: read_wiring(raw.decode(), ctx.hostname), MAX_BYTES
        )
        self._lldp = SiteFile(self._config.lldp_neighbors, read_neighbours, MAX_LLDP_BYTES)
        if ctx.roots.sys != Path("/sys"):  # the kernel knows its own devices, not those of a recorded tree
            self._asks_for_resources = False

    async def update(self) -> None:
        """Look at every device; NoData when there never was one."""
        functions = tuple(self._baseline.functions)
        devices, hidden = await self._thread.call(lambda: self._look(functions))
        await self._learn_wiring()
        if devices and self._asks_for_resources:
            await self._count_resources()
        vanished = self._baseline.vanished
        learn(self._baseline, devices, hidden)
        self._devices = devices
        if self._baseline.vanished > vanished:
            gone = sorted(each.device for each in self._baseline.functions.values() if each.missing)
            self._ctx.log.warning("RDMA devices have vanished: {missing}", missing=",".join(gone))
        self._tell()
        self._ctx.state.publish(msgspec.msgpack.encode(self._baseline))
        if not self._baseline.functions and not self._devices:
            raise NoData

    async def _count_resources(self) -> None:
        """Ask the kernel; where it cannot be asked that is said once."""
        try:
            self._resources = await self._thread.call(read_resources)
        except OSError as error:
            self._resources, self._asks_for_resources = {}, False
            self._ctx.log.info("RDMA resources are not shown, as the kernel cannot be asked by netlink", error=error)

    async def _learn_wiring(self) -> None:
        """Read the site's files where they changed; one that cannot be read changes nothing."""
        neighbours = await self._read("lldp_neighbors", self._lldp)
        if neighbours is not None:
            self._neighbours = neighbours
        written = self._lldp.written_seconds
        if written is None or self._ctx.clock.time() - written > NEIGHBOURS_SECONDS:
            self._neighbours = {}
        found = await self._read("switch_ports", self._wiring)
        if found is not None:
            self._switches = found.switches
            if found.bad_lines:
                lines = ",".join(map(str, found.bad_lines[:MAX_LINES_SAID]))
                self._ctx.log.warning("lines of switch_ports are passed over: {lines}", lines=lines)

    async def _read(self, key: str, file: SiteFile[T]) -> T | None:
        """What a file says where it changed; that it cannot be read is said once."""
        try:
            return await self._thread.call(file.changed)
        except (OSError, ValueError) as error:
            self._ctx.log.warning("the file of {key} cannot be read", key=key, error=error)
            return None

    def _look(self, functions: Iterable[str]) -> tuple[tuple[RdmaDevice, ...], frozenset[str]]:
        """The devices, and which of these PCI functions may have theirs elsewhere. Runs in the thread."""
        root, ignored = self._ctx.roots.sys, frozenset(self._config.ignore_devices)
        devices = tuple(device for device in read_devices(root) if device.name not in ignored)
        return devices, hidden_functions(root, functions)

    def snapshot(self) -> RdmaSnapshot:
        """Copy what is known: the baseline grows."""
        baseline = msgspec.msgpack.decode(msgspec.msgpack.encode(self._baseline), type=Baseline)
        return RdmaSnapshot(
            self._devices, baseline, self._config.all_counters, self._switches, self._neighbours, self._resources
        )

    def families(self, snapshot: RdmaSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Nothing is under way; what was lent ends by itself."""

    def _tell(self) -> None:
        levels = {}
        for each in judge(self._baseline, self._devices):
            nic = Subject("nic", each.device)
            levels[nic, "rdma_device_missing"] = CheckState.of(each.present)
            levels[nic, "rdma_port_down"] = CheckState.of(each.up)
            levels[nic, "rdma_rate_degraded"] = CheckState.of(each.fast)
        self._ctx.checks.report_all(levels)
        expected = self._baseline.functions.items()  # those that are missing stay near their GPUs
        self._ctx.hardware.observe_nics(Nic(each.device, pci, each.pci_path, each.numa) for pci, each in expected)


SPEC = Spec(
    name="rdma",
    config=RdmaConfig,
    build=RdmaExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=20_000,
    keeps_past=True,
)
