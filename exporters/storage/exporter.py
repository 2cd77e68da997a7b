"""The exporter: asks the helper how the paths do, and reads Lustre's health file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.hardware import NODE, CheckState, Levels, Subject
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import Metric
from agent.sdk.system import sysfs
from exporters.storage.families import FAMILIES, StorageSnapshot, render
from exporters.storage.probe import FreeSpace, Probe, ProbeRequest

INTERVAL_SECONDS = 15.0
HELPER_SECONDS = 5.0
"""The helper waits for no file system; it answers within its grace."""
MAX_PATHS = 32
ABSENT_SECONDS = 300.0
"""How often dump paths that nobody has made yet are looked for."""
DUMP_SECONDS = 60.0
"""How often the room of dump paths is looked at where no other path is probed: in between the helper ends."""
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
        self._found = False
        self._asleep_until = float("-inf")

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
        if self._ctx.clock.monotonic() >= self._asleep_until:
            self._probes = ()  # while the helper gives no answer, nothing is known
            self._probes = await self._probe()
        self._ctx.checks.report_all(levels(self._config, self._probes, self._lustre))
        if not self._probes and self._lustre is None:
            raise NoData

    async def _probe(self) -> tuple[Probe, ...]:
        """Ask the helper, which alone touches what may hang.

        Where only dump paths are asked about, or nothing has been there so far, it ends until the next time.
        """
        request = ProbeRequest(self._config.paths, self._config.dump_paths)
        if not request.paths and not request.optional:
            return ()
        found = await self._helper.call(request, HELPER_SECONDS)
        self._found = self._found or bool(found)
        if not self._config.paths and not any(each.under_way_seconds for each in found):
            self._helper.rest()
            wait = DUMP_SECONDS if self._found else ABSENT_SECONDS
            self._asleep_until = self._ctx.clock.monotonic() + wait
        return tuple(found)

    def snapshot(self) -> StorageSnapshot:
        """What the last look gave."""
        hung = frozenset(each.path for each in self._probes if hangs(self._config, each))
        return StorageSnapshot(self._probes, hung, self._lustre)

    def families(self, snapshot: StorageSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Nothing is under way; what was lent ends by itself."""


def hangs(config: StorageConfig, each: Probe) -> bool:
    """True when a probe has been under way for too long."""
    return each.under_way_seconds > config.deadline_seconds


def levels(config: StorageConfig, probes: Iterable[Probe], lustre: bool | None) -> Levels:
    """What the node's checks come to: well while all paths that tell are, absent where none does."""
    found = {(NODE, "lustre_unhealthy"): CheckState.of(lustre)} if lustre is not None else {}
    for each in probes:
        hung = hangs(config, each)
        if each.path in config.paths and (each.ok is not None or hung):
            _and(found, "storage_failed", bool(each.ok) and not hung)
        if each.path in config.dump_paths and each.room is not None:
            _and(found, "dump_disk_full", not _is_full(config, each.room))
    return found


def _and(found: dict[tuple[Subject, str], CheckState], check: str, well: bool) -> None:
    """Note one path of a check: it has failed when one of them has."""
    if not well or (NODE, check) not in found:
        found[NODE, check] = CheckState.of(well)


def _is_full(config: StorageConfig, room: FreeSpace) -> bool:
    return (
        room.available_bytes < config.full_ratio * room.size_bytes
        or room.inodes_available < config.full_ratio * room.inodes
    )


SPEC = Spec(
    name="storage",
    config=StorageConfig,
    build=StorageExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=1_000,
    checkpoint_bytes=0,
)
