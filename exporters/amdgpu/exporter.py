"""Reads sysfs in a thread of its own, compares the GPUs with the baseline, and writes checks and faults.

The metric families are those that all GPU makers share, and AMD's own. A pure function turns a snapshot into metrics.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import MAX_SECTION_BYTES, Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.hardware import Gpu, Subject, gpu_families, gpu_faults
from agent.sdk.metrics import Family, Metric, Rows
from exporters.amdgpu.baseline import Known, RasErrors, View, learn, verdicts, views
from exporters.amdgpu.metrics_table import LoweredSeconds, Table, memory_active
from exporters.amdgpu.tree import read_gpus, read_users, read_versions

INTERVAL_SECONDS = 10.0

# fmt: off
RAS_ERRORS = gpu_families.counter("rankwatch_gpu_ras_errors_total",
    "Hardware errors of AMD GPUs since the driver was loaded, by type (uncorrected, corrected or deferred) and block: "
    "umc is the memory, xgmi_wafl the links between GPUs.",
    "2 to 3 per GPU and block", "block", "type")
# fmt: on
_NUMBERS = {
    "busy_percent": (gpu_families.UTILIZATION, 0.01, ()),
    "memory_bytes": (gpu_families.MEMORY, 1.0, ()),
    "memory_used_bytes": (gpu_families.MEMORY_USED, 1.0, ()),
    "pcie_replays": (gpu_families.PCIE_REPLAYS, 1.0, ()),
    "temp/junction/input": (gpu_families.TEMPERATURE, 1e-3, ("core",)),
    "temp/mem/input": (gpu_families.TEMPERATURE, 1e-3, ("memory",)),
    "power/ppt/average": (gpu_families.POWER, 1e-6, ()),
    "power/ppt/input": (gpu_families.POWER, 1e-6, ()),
    "power/ppt/cap": (gpu_families.POWER_LIMIT, 1e-6, ()),
    "freq/sclk/input": (gpu_families.SM_CLOCK, 1.0, ()),
}
"""For each value or sensor: family, factor to its unit, further labels. A series has its first present value."""
_TYPES = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
FAMILIES = (
    gpu_families.PRESENT,
    gpu_families.INFO,
    gpu_families.DRIVER_INFO,
    gpu_families.PROCESSES,
    gpu_families.ECC_ERRORS,
    gpu_families.CLOCKS_SECONDS,
    *dict.fromkeys(family for family, _, _ in _NUMBERS.values()),
    gpu_families.ACTIVE,
    RAS_ERRORS,
)


class AmdgpuSnapshot(msgspec.Struct, frozen=True):
    """``users``: PCI addresses by pid. ``lowered_seconds``: seconds of lowered clocks, by PCI address and reason.

    ``memory_active``: by PCI address, the used share (0 to 1) of the memory bandwidth between the last two polls.
    ``versions``: the versions of the driver and of ROCm.
    """

    gpus: tuple[View, ...]
    users: dict[int, list[str]]
    lowered_seconds: dict[str, dict[str, float]] = {}
    memory_active: dict[str, float] = {}
    versions: tuple[str, str] = ("", "")


def render(snapshot: AmdgpuSnapshot) -> Iterable[Metric]:
    """Return the metric families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    driver, rocm = snapshot.versions
    if driver or rocm:
        rows[gpu_families.DRIVER_INFO].add((driver, "", rocm), 1)
    for gpu in snapshot.gpus:
        labels = (str(gpu.index), gpu.known.uuid)
        rows[gpu_families.PRESENT].add(labels, float(gpu.raw is not None))
        rows[gpu_families.INFO].add((*labels, gpu.pci, gpu.known.name), 1)
        if gpu.raw is None:
            continue
        rows[gpu_families.PROCESSES].add(labels, sum(gpu.pci in used for used in snapshot.users.values()))
        _numbers(rows, labels, gpu.raw.values | gpu.raw.sensors)
        _errors(rows, labels, gpu.raw.errors)
        for reason, seconds in snapshot.lowered_seconds.get(gpu.pci, {}).items():
            rows[gpu_families.CLOCKS_SECONDS].add((*labels, reason), seconds)
        if gpu.pci in snapshot.memory_active:
            rows[gpu_families.ACTIVE].add((*labels, "dram"), snapshot.memory_active[gpu.pci])
    return [row.metric for row in rows.values()]


def _numbers(rows: Mapping[Family, Rows], labels: tuple[str, str], values: Mapping[str, float]) -> None:
    shown: dict[tuple[Family, tuple[str, ...]], float] = {}
    for name, (family, factor, further) in _NUMBERS.items():
        if name in values:
            shown.setdefault((family, further), values[name] * factor)
    for (family, further), number in shown.items():
        rows[family].add((*labels, *further), number)


def _errors(rows: Mapping[Family, Rows], labels: tuple[str, str], errors: Mapping[str, Mapping[str, int]]) -> None:
    for block, counts in errors.items():
        for kind, count in counts.items():
            rows[RAS_ERRORS].add((*labels, block, _TYPES[kind]), count)
    for kind, count in errors.get("umc", {}).items():
        if kind != "de":
            rows[gpu_families.ECC_ERRORS].add((*labels, _TYPES[kind], "volatile"), count)


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
        """Read every GPU and its processes, and compare the values with those of the previous poll."""
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
        """Return the metric families of a snapshot. Pure."""
        return render(snapshot)

    def _report(self, snapshot: AmdgpuSnapshot) -> None:
        for gpu in snapshot.gpus:
            for check, state in verdicts(gpu).items():
                self.ctx.checks.report(Subject("gpu", gpu.known.uuid), check, state)
        self.ctx.checks.forget([Subject("gpu", gpu.known.uuid) for gpu in snapshot.gpus])
        if snapshot.gpus:
            lost = {gpu.known.uuid for gpu in snapshot.gpus if gpu.raw is None}
            absent = [gpu for gpu in self.ctx.hardware.gpus() if gpu.uuid in lost]
            present = [
                Gpu(gpu.index, gpu.known.uuid, gpu.pci, gpu.raw.pci_path, gpu.raw.numa)
                for gpu in snapshot.gpus
                if gpu.raw is not None
            ]
            uuids = {gpu.pci: gpu.known.uuid for gpu in snapshot.gpus}
            users = {pid: [uuids[pci] for pci in used if pci in uuids] for pid, used in snapshot.users.items()}
            self.ctx.hardware.observe_gpus([*present, *absent])
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
