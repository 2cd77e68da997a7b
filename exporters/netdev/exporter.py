"""The exporter: reads devices in its own thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Roots, Spec, SysfsExporter
from agent.sdk.metrics import Metric
from exporters.netdev import devices, pause
from exporters.netdev.devices import NetworkDevice, read_devices
from exporters.netdev.pause import Count, PauseReader

INTERVAL_SECONDS = 15.0
FAMILIES = (*devices.FAMILIES, pause.FRAMES)


class NetdevConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The exporter has no options of its own."""


class NetdevFound(msgspec.Struct, frozen=True):
    """The devices, and their pause frames by device name."""

    devices: tuple[NetworkDevice, ...]
    pauses: dict[str, tuple[Count, ...]]


class NetdevExporter(SysfsExporter[NetdevConfig, NetdevFound]):
    """See the package."""

    _pauses: PauseReader | None = None

    async def start(self, ctx: Context) -> None:
        """Prepare to read pause frames: netlink shows the kernel's real devices, not those of a recorded tree."""
        await super().start(ctx)
        if ctx.roots.sys == Path("/sys"):
            self._pauses = PauseReader()

    def read(self, roots: Roots) -> NetdevFound:
        """Read every device. Raise NoData without any device."""
        found = read_devices(roots.sys)
        if not found:
            raise NoData
        return NetdevFound(found, self._read_pauses({device.name: device.driver for device in found}))

    def _read_pauses(self, drivers: dict[str, str]) -> dict[str, tuple[Count, ...]]:
        """Return the pause frames by device. If netlink is refused, return none and set the note of the front page."""
        if self._pauses is None:
            return {}
        try:
            return self._pauses.read(drivers, self.ctx.clock.monotonic())
        except OSError as error:
            self._pauses = None
            self.ctx.note.text = pause.NOTE
            self.ctx.log.info("pause frames unavailable: the netlink query to the kernel failed", error=error)
            return {}

    def render(self, found: NetdevFound) -> Iterable[Metric]:
        """Return the families, with one series for each value that was read."""
        rows = {family: family.rows() for family in FAMILIES}
        for device in found.devices:
            for family, value in device.values.items():
                rows[family].add((device.name,), value)
            for direction, priority, frames in found.pauses.get(device.name, ()):
                rows[pause.FRAMES].add((device.name, direction, priority), frames)
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
