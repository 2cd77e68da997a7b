"""The exporter: looks at sysfs in a thread of its own, compares, and tells the agent's tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.hardware import Gpu, Subject, gpu_faults
from agent.sdk.metrics import Metric
from exporters.amdgpu.baseline import Known, View, learn, verdicts, views
from exporters.amdgpu.families import FAMILIES, AmdgpuSnapshot, render
from exporters.amdgpu.metrics_table import LoweredSeconds, memory_active
from exporters.amdgpu.ras_errors import RasErrors
from exporters.amdgpu.tree import read_driver, read_gpus, read_rocm, read_users

INTERVAL_SECONDS = 10.0
_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]


class AmdgpuConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``all_values``: series of every number, some 10 more per GPU and its firmwares, not only of what rules and
    dashboards ask for; ``rocm``: where ROCm is installed, for its version.
    """

    all_values: bool = False
    rocm: _Path = "/opt/rocm"


class AmdgpuExporter:
    """See the package."""

    def __init__(self, config: AmdgpuConfig) -> None:
        self._config = config
        self._known: dict[str, Known] = {}
        self._gpus: tuple[View, ...] = ()
        self._users: dict[int, list[str]] = {}
        self._lowered: dict[str, LoweredSeconds] = {}
        self._memory_active: dict[str, float] = {}
        self._ras_errors = RasErrors()
        self._driver = self._rocm = ""

    async def start(self, ctx: Context) -> None:
        """Take back which GPUs there were since the boot."""
        self._ctx = ctx
        self._thread = ctx.thread("amdgpu")
        await self._thread.call(gpu_faults.read_table)
        self._known = ctx.state.restore(dict[str, Known], ctx.log) or {}

    async def update(self) -> None:
        """Look at every GPU; NoData when there never was one."""
        root, rocm, firmware = self._ctx.roots.sys, Path(self._config.rocm), self._config.all_values
        found, self._users = await self._thread.call(lambda: (read_gpus(root, firmware=firmware), read_users(root)))
        self._driver, self._rocm = await self._thread.call(lambda: (read_driver(root), read_rocm(rocm)))
        learn(self._known, found)
        before = {gpu.pci: gpu.raw.table for gpu in self._gpus if gpu.raw is not None}
        active = {gpu.pci: memory_active(before.get(gpu.pci), gpu.table) for gpu in found}
        self._memory_active = {pci: share for pci, share in active.items() if share is not None}
        self._gpus = views(self._known, found)
        self._ras_errors.look(found, self._ctx.clock.time())
        self._ctx.hardware.observe_faults(self._ras_errors.faults)
        for gpu in found:
            if gpu.table is not None:
                self._lowered.setdefault(gpu.pci, LoweredSeconds()).add(gpu.table, self._ctx.clock.monotonic())
        self._tell()
        self._ctx.state.publish(msgspec.msgpack.encode(self._known))
        if not self._gpus:
            raise NoData

    def snapshot(self) -> AmdgpuSnapshot:
        """What the last look gave."""
        lowered = {pci: dict(each.seconds) for pci, each in self._lowered.items()}
        return AmdgpuSnapshot(
            self._gpus, self._users, lowered, self._memory_active, self._config.all_values, self._driver, self._rocm
        )

    def families(self, snapshot: AmdgpuSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Nothing is under way; what was lent ends by itself."""

    def _tell(self) -> None:
        for gpu in self._gpus:
            for check, state in verdicts(gpu).items():
                self._ctx.checks.report(Subject("gpu", gpu.known.uuid), check, state)
        there = [gpu for gpu in self._gpus if gpu.raw is not None]
        lost = {gpu.known.uuid for gpu in self._gpus if gpu.raw is None}
        stay = [gpu for gpu in self._ctx.hardware.gpus() if gpu.uuid in lost]
        seen = [
            Gpu(gpu.index, gpu.known.uuid, gpu.pci, gpu.raw.pci_path, gpu.raw.numa)
            for gpu in there
            if gpu.raw is not None
        ]
        if self._gpus:
            uuids = {gpu.pci: gpu.known.uuid for gpu in self._gpus}
            users = {pid: [uuids[pci] for pci in used if pci in uuids] for pid, used in self._users.items()}
            self._ctx.hardware.observe_gpus([*seen, *stay])
            self._ctx.hardware.observe_gpu_processes(users, lost)


SPEC = Spec(
    name="amdgpu",
    config=AmdgpuConfig,
    build=AmdgpuExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=20_000,
    keeps_past=True,
)
