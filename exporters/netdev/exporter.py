"""The exporter: reads devices in a thread of its own."""

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
    """Devices, and their pause frames by name."""

    devices: tuple[NetworkDevice, ...]
    pauses: dict[str, tuple[Count, ...]]


class NetdevExporter(SysfsExporter[NetdevConfig, NetdevFound]):
    """See the package."""

    _pauses: PauseReader | None = None

    async def start(self, ctx: Context) -> None:
        """Prepare; netlink gives the kernel's own devices, not those of a recorded tree."""
        await super().start(ctx)
        if ctx.roots.sys == Path("/sys"):
            self._pauses = PauseReader()

    def read(self, roots: Roots) -> NetdevFound:
        """Every device; NoData when there is none."""
        found = read_devices(roots.sys)
        if not found:
            raise NoData
        return NetdevFound(found, self._read_pauses({device.name: device.driver for device in found}))

    def _read_pauses(self, drivers: dict[str, str]) -> dict[str, tuple[Count, ...]]:
        """The pause frames by device; none, and a note on the front page, where netlink is refused."""
        if self._pauses is None:
            return {}
        try:
            return self._pauses.read(drivers, self.ctx.clock.monotonic())
        except OSError as error:
            self._pauses = None
            self.ctx.note.text = pause.NOTE
            self.ctx.log.info("pause frames are not shown, as the kernel cannot be asked by netlink", error=error)
            return {}

    def render(self, found: NetdevFound) -> Iterable[Metric]:
        """A series for each value that was read."""
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
