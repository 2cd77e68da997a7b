"""The exporter: looks at sysfs in a thread of its own, compares, and tells the ledger."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.api import Context, ExporterConfig, Metric, Nic, NoData, Spec, Subject
from exporters.rdma.baseline import Baseline, judge, learn
from exporters.rdma.families import FAMILIES, Snapshot, render
from exporters.rdma.tree import Device, read_devices

INTERVAL_SECONDS = 15.0


class RdmaConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nothing to choose but whether."""


class RdmaExporter:
    """See the package."""

    def __init__(self, config: RdmaConfig) -> None:
        self._config = config
        self._devices: tuple[Device, ...] = ()
        self._baseline = Baseline()

    async def start(self, ctx: Context) -> None:
        """Take back what was learnt since the boot."""
        self._ctx = ctx
        self._thread = ctx.thread("rdma")
        self._baseline = ctx.state.restore(Baseline, ctx.log) or Baseline()

    async def update(self) -> None:
        """Look at every device; NoData when there never was one."""
        root = self._ctx.roots.sys
        devices = await self._thread.call(lambda: read_devices(root))
        vanished = self._baseline.vanished
        learn(self._baseline, devices)
        self._devices = tuple(devices)
        if self._baseline.vanished > vanished:
            gone = sorted(name for name, missing in self._baseline.missing.items() if missing)
            self._ctx.log.warning("an RDMA device has vanished", missing=",".join(gone))
        self._tell()
        self._ctx.state.publish(msgspec.msgpack.encode(self._baseline))
        if not self._baseline.ports:
            raise NoData

    def snapshot(self) -> Snapshot:
        """Copy what is known: the baseline grows."""
        return Snapshot(self._devices, msgspec.msgpack.decode(msgspec.msgpack.encode(self._baseline), type=Baseline))

    def families(self, snapshot: Snapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Look no more."""
        self._thread.stop()

    def _tell(self) -> None:
        checks = self._ctx.checks
        for each in judge(self._baseline, self._devices):
            nic = Subject("nic", each.device)
            checks.report(nic, "rdma_device_missing", ok=each.present)
            checks.report(nic, "rdma_port_down", ok=each.up)
            checks.report(nic, "rdma_rate_degraded", ok=each.fast)
        nics = [Nic(device.name, device.pci, device.pci_path, device.numa) for device in self._devices]
        if nics:  # those that vanished stay near their GPUs
            known = {nic.device: nic for nic in self._ctx.hardware.nics()}
            self._ctx.hardware.observe_nics("rdma", {**known, **{nic.device: nic for nic in nics}}.values())


SPEC = Spec(
    name="rdma",
    config=RdmaConfig,
    build=RdmaExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=20_000,
)
