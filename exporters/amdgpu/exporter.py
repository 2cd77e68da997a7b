"""Reads sysfs in a thread of its own, compares with the baseline, and writes to the agent's tables."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import MAX_SECTION_BYTES, Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.hardware import Gpu, Subject, gpu_faults
from agent.sdk.metrics import Metric
from exporters.amdgpu.baseline import Known, RasErrors, learn, verdicts, views
from exporters.amdgpu.families import FAMILIES, AmdgpuSnapshot, render
from exporters.amdgpu.metrics_table import LoweredSeconds, Table, memory_active
from exporters.amdgpu.tree import read_gpus, read_users, read_versions

INTERVAL_SECONDS = 10.0


class AmdgpuConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``rocm``: the directory of ROCm. The exporter reads ROCm's version there."""

    rocm: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)] = "/opt/rocm"


class AmdgpuExporter(SysfsExporter[AmdgpuConfig, AmdgpuSnapshot]):
    """Exports AMD GPUs with their checks and faults."""

    def __init__(self, config: AmdgpuConfig) -> None:
        super().__init__(config)
        self._known: dict[str, Known] = {}
        self._tables: dict[str, Table | None] = {}
        self._lowered: dict[str, LoweredSeconds] = {}
        self._ras_errors = RasErrors()

    async def start(self, ctx: Context) -> None:
        """Restore the GPUs of this boot."""
        await super().start(ctx)
        await self._thread.call(gpu_faults.read_table)
        self._known = ctx.state.restore(dict[str, Known], ctx.log) or {}

    def read(self, roots: Roots) -> AmdgpuSnapshot:
        """Read every GPU and its processes, and compare with the previous poll."""
        gpus, clock = read_gpus(roots.sys), self.ctx.clock
        learn(self._known, gpus)
        self._ras_errors.look(gpus, clock.time())
        before, self._tables = self._tables, {gpu.pci: gpu.table for gpu in gpus}
        active = {pci: memory_active(before.get(pci), table) for pci, table in self._tables.items()}
        for pci, table in self._tables.items():
            if table is not None:
                self._lowered.setdefault(pci, LoweredSeconds()).add(table, clock.monotonic())
        return AmdgpuSnapshot(
            views(self._known, gpus),
            read_users(roots.sys),
            {pci: dict(lowered.seconds) for pci, lowered in self._lowered.items()},
            {pci: share for pci, share in active.items() if share is not None},
            read_versions(roots.sys, Path(self.config.rocm)),
        )

    async def update(self) -> None:
        """Poll every GPU. Raise NoData when no GPU was seen since the boot."""
        self.shown = await self.look()
        self.ctx.hardware.observe_faults(self._ras_errors.faults)
        self._report(self.shown)
        self.ctx.state.publish(msgspec.msgpack.encode(self._known))
        if not self.shown.gpus:
            raise NoData

    def render(self, snapshot: AmdgpuSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    def _report(self, snapshot: AmdgpuSnapshot) -> None:
        for gpu in snapshot.gpus:
            for check, state in verdicts(gpu).items():
                self.ctx.checks.report(Subject("gpu", gpu.known.uuid), check, state)
        if snapshot.gpus:
            lost = {gpu.known.uuid for gpu in snapshot.gpus if gpu.raw is None}
            known = [gpu for gpu in self.ctx.hardware.gpus() if gpu.uuid in lost]
            seen = [
                Gpu(gpu.index, gpu.known.uuid, gpu.pci, gpu.raw.pci_path, gpu.raw.numa)
                for gpu in snapshot.gpus
                if gpu.raw is not None
            ]
            uuids = {gpu.pci: gpu.known.uuid for gpu in snapshot.gpus}
            users = {pid: [uuids[pci] for pci in used if pci in uuids] for pid, used in snapshot.users.items()}
            self.ctx.hardware.observe_gpus([*seen, *known])
            self.ctx.hardware.observe_gpu_processes(users, lost)


SPEC = Spec(
    name="amdgpu",
    config=AmdgpuConfig,
    build=AmdgpuExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    checkpoint_bytes=MAX_SECTION_BYTES,
    series_cap=20_000,
    keeps_past=True,
)
