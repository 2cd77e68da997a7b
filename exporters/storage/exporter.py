"""The exporter: asks the helper how the paths do, and reads Lustre's health file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from agent.api import (
    NODE,
    Context,
    ExporterConfig,
    HelperSpec,
    Metric,
    NoData,
    Spec,
    sysfs,
)
from exporters.storage.families import FAMILIES, Snapshot, render
from exporters.storage.probe import Probe, Request

INTERVAL_SECONDS = 15.0
HELPER_SECONDS = 5.0
"""The helper waits for no file system; it answers within its grace."""
MAX_PATHS = 32
PROBER = HelperSpec("storage", "exporters.storage.probe:probe", list[Probe], memory_bytes=64 * 1024 * 1024)

_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=255)]


class StorageConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: files and directories that jobs need; ``dump_paths``: directories that must not run full, if there.

    A probe that takes longer than ``deadline_seconds`` hangs; below ``full_ratio`` of its room a dump path is full.
    """

    paths: Annotated[list[_Path], msgspec.Meta(max_length=MAX_PATHS)] = msgspec.field(default_factory=list)
    dump_paths: Annotated[list[_Path], msgspec.Meta(max_length=MAX_PATHS)] = msgspec.field(
        default_factory=lambda: ["/var/lib/rankwatch/inspector"]
    )
    deadline_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    full_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05


class StorageExporter:
    """See the package."""

    def __init__(self, config: StorageConfig) -> None:
        self._config = config
        self._probes: tuple[Probe, ...] = ()
        self._lustre: bool | None = None

    async def start(self, ctx: Context) -> None:
        """Prepare the helper; no path is touched yet."""
        self._ctx = ctx
        self._thread = ctx.thread("storage")
        self._helper = ctx.helper(PROBER)

    async def update(self) -> None:
        """Ask how the paths do; NoData when none is configured or there, and there is no Lustre."""
        health = self._ctx.roots.sys / "fs/lustre/health_check"
        told = await self._thread.call(lambda: sysfs.read_text(health))
        self._lustre = None if told is None else told.startswith("healthy")
        paths = list(dict.fromkeys((*self._config.paths, *await self._thread.call(self._dump_paths))))
        probes: list[Probe] = []
        if paths:
            self._probes = ()  # while the helper gives no answer, nothing is known
            probes = await self._helper.call(Request(paths), HELPER_SECONDS)
        self._probes = tuple(probes)
        self._tell()
        if not self._probes and self._lustre is None:
            raise NoData

    def _dump_paths(self) -> list[str]:
        """Those that are there: for what nobody has made yet no helper is kept. Runs in the thread."""
        return [path for path in self._config.dump_paths if Path(path).is_dir()]

    def snapshot(self) -> Snapshot:
        """What the last look gave."""
        return Snapshot(self._probes, frozenset(each.path for each in self._probes if self._hangs(each)), self._lustre)

    def families(self, snapshot: Snapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """End the helper; one that hangs in the kernel is left behind."""
        await self._helper.stop()
        self._thread.stop()

    def _hangs(self, each: Probe) -> bool:
        return each.under_way_seconds > self._config.deadline_seconds

    def _tell(self) -> None:
        checks = self._ctx.checks
        wanted = [each for each in self._probes if each.path in self._config.paths]
        if wanted:
            checks.report(NODE, "storage_failed", ok=not any(self._hangs(each) or each.ok is False for each in wanted))
        dumps = [each.room for each in self._probes if each.path in self._config.dump_paths and each.room is not None]
        if dumps:
            full = any(
                room.available_bytes < self._config.full_ratio * room.size_bytes
                or room.inodes_available < self._config.full_ratio * room.inodes
                for room in dumps
            )
            checks.report(NODE, "dump_disk_full", ok=not full)
        if self._lustre is not None:
            checks.report(NODE, "lustre_unhealthy", ok=self._lustre)


SPEC = Spec(
    name="storage",
    config=StorageConfig,
    build=StorageExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=1_000,
)
