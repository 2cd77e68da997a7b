"""Lets the helper probe the paths, reads Lustre's health file, and renders the metrics."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, ShownExporter, Spec
from agent.sdk.hardware import NODE, CheckState, Levels
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import Family, Metric
from agent.sdk.system import sysfs
from exporters.storage.probe import Probe, ProbeRequest

INTERVAL_SECONDS = 15.0
HELPER_SECONDS = 5.0
"""Time limit of a call to the helper. The helper never waits for a file system: it answers after GRACE_SECONDS."""
MAX_PATHS = 32
ABSENT_SECONDS = 300.0  # The time between two polls for dump paths that do not exist yet
DUMP_SECONDS = 60.0
"""The time between two polls of dump paths when no other path is configured. The helper ends in between."""
PROBER = HelperSpec("storage", "exporters.storage.probe:probe", list[Probe], memory_bytes=64 * 1024 * 1024)


def _gauge(name: str, text: str) -> Family:
    return Family(name, "gauge", text, ("path",), "1 per path")


# fmt: off
SUCCESS = _gauge("rankwatch_storage_probe_success",
    "1 when the last probe of the path succeeded, 0 when it failed or hangs. A probe reads the first entry of a "
    "directory or the first bytes of a file. Absent until the first probe ends or passes its deadline.")
DURATION = _gauge("rankwatch_storage_probe_duration_seconds",
    "Duration of the last probe, or the time since the running probe started; the greater of the two.")
# fmt: on
FAMILIES = (SUCCESS, DURATION)

_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=255)]


class StorageConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: files and directories that jobs need. ``dump_paths``: directories that must not become full.

    A dump path need not exist. A probe hangs when it takes longer than ``deadline_seconds``. A dump path is full when
    its free share of bytes or inodes is below ``full_ratio``.
    """

    paths: Annotated[list[_Path], msgspec.Meta(max_length=MAX_PATHS)] = msgspec.field(default_factory=list)
    dump_paths: Annotated[list[_Path], msgspec.Meta(max_length=MAX_PATHS)] = msgspec.field(
        default_factory=lambda: ["/var/lib/rankwatch/inspector"]
    )
    deadline_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    full_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05


class StorageExporter(ShownExporter[tuple[Probe, ...]]):
    """Exports the probes of storage paths, and checks them."""

    def __init__(self, config: StorageConfig) -> None:
        super().__init__((), partial(render, config))
        self._config = config
        self._has_paths = False
        self._asleep_until = float("-inf")

    async def start(self, ctx: Context) -> None:
        """Prepare the helper. No path is read yet."""
        self._ctx = ctx
        self._thread = ctx.thread("storage")
        self._helper = ctx.helper(PROBER)

    async def update(self) -> None:
        """Probe the paths. Without Lustre, raise NoData if no path is configured or no path exists."""
        health = await self._thread.call(lambda: sysfs.read_text(self._ctx.roots.sys / "fs/lustre/health_check"))
        lustre = None if health is None else health.startswith("healthy")
        if self._ctx.clock.monotonic() >= self._asleep_until:
            self.shown = ()  # no probe is known until the helper answers
            self.shown = await self._probe()
        self._ctx.checks.report_all(levels(self._config, self.shown, lustre))
        if not self.shown and lustre is None:
            raise NoData

    async def _probe(self) -> tuple[Probe, ...]:
        """Return the probes of the helper. Only the helper reads the paths, because they may hang.

        If only dump paths are configured, the helper ends until the next poll.
        """
        request = ProbeRequest(self._config.paths, self._config.dump_paths)
        if not request.paths and not request.optional:
            return ()
        probes = await self._helper.call(request, HELPER_SECONDS)
        self._has_paths = self._has_paths or bool(probes)
        if not self._config.paths and not any(probe.under_way_seconds for probe in probes):
            self._helper.rest()
            wait = DUMP_SECONDS if self._has_paths else ABSENT_SECONDS
            self._asleep_until = self._ctx.clock.monotonic() + wait
        return tuple(probes)


def render(config: StorageConfig, probes: Iterable[Probe]) -> Iterable[Metric]:
    """Return the families of the last poll's probes."""
    rows = {family: family.rows() for family in FAMILIES}
    for probe in probes:
        path, hung = (probe.path,), hangs(config, probe)
        if probe.ok is not None or hung:
            rows[SUCCESS].add(path, float(bool(probe.ok) and not hung))
            rows[DURATION].add(path, max(probe.seconds, probe.under_way_seconds))
    return [row.metric for row in rows.values()]


def hangs(config: StorageConfig, probe: Probe) -> bool:
    """Return True if the last probe took longer than ``deadline_seconds``, or the running probe does."""
    return max(probe.seconds, probe.under_way_seconds) > config.deadline_seconds


def levels(config: StorageConfig, probes: Iterable[Probe], lustre: bool | None) -> Levels:
    """Return the node's checks: OK while all paths with an answer are healthy, absent without an answer.

    ``lustre``: whether Lustre reports itself healthy, None without Lustre.
    """
    healthy: dict[str, bool] = {} if lustre is None else {"lustre_unhealthy": lustre}
    for probe in probes:
        hung = hangs(config, probe)
        if probe.path in config.paths and (probe.ok is not None or hung):
            healthy["storage_failed"] = healthy.get("storage_failed", True) and bool(probe.ok) and not hung
        if probe.path in config.dump_paths and probe.free is not None:
            healthy["dump_disk_full"] = healthy.get("dump_disk_full", True) and probe.free >= config.full_ratio
    return {(NODE, check): CheckState.of(ok) for check, ok in healthy.items()}


SPEC = Spec(
    name="storage",
    config=StorageConfig,
    build=StorageExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=1_000,
)
