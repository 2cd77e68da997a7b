"""The exporter: reads devices in a thread of its own, and shows what was read last."""

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
FAMILIES = (*devices.FAMILIES, pause.FRAMES, pause.UNREAD)


class NetdevConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``all_values``: speed, MTU, traffic and what is lost on its way out, too: 6 more per device."""

    all_values: bool = False


class NetdevFound(msgspec.Struct, frozen=True):
    """Devices, and their pause frames by name, None where the kernel may not be asked for them."""

    devices: tuple[NetworkDevice, ...]
    pauses: dict[str, tuple[Count, ...]] | None


class NetdevExporter(SysfsExporter[NetdevConfig, NetdevFound]):
    """See the package."""

    _pauses: PauseReader | None = None
    _is_refused = False

    async def start(self, ctx: Context) -> None:
        """Prepare; the kernel is asked about its own devices, not about those of a recorded tree."""
        await super().start(ctx)
        if ctx.roots.sys == Path("/sys"):
            self._pauses = PauseReader()

    def read(self, roots: Roots) -> NetdevFound:
        """Every device; NoData when there is none."""
        found = read_devices(roots.sys)
        if not found:
            raise NoData
        return NetdevFound(found, self._read_pauses({device.name: device.driver for device in found}))

    def _read_pauses(self, drivers: dict[str, str]) -> dict[str, tuple[Count, ...]] | None:
        if self._pauses is None:
            return None if self._is_refused else {}
        try:
            return self._pauses.read(drivers, self.ctx.clock.monotonic())
        except OSError as error:
            self._pauses, self._is_refused = None, True
            self.ctx.note.text = pause.NOTE
            self.ctx.log.info("pause frames are not shown, as the kernel cannot be asked by netlink", error=error)
            return None

    def render(self, found: NetdevFound) -> Iterable[Metric]:
        """A series for each value that was read."""
        hidden = frozenset() if self.config.all_values else devices.DETAILS
        rows = {family.name: family.rows() for family in FAMILIES if family.name not in hidden}
        for device in found.devices:
            for family, value in device.values.items():
                if family in rows:
                    rows[family].add((device.name,), value)
            for direction, priority, frames in (found.pauses or {}).get(device.name, ()):
                rows[pause.FRAMES.name].add((device.name, direction, priority), frames)
        if found.pauses is None:
            rows[pause.UNREAD.name].add((), 1)
        return [each.metric for each in rows.values()]


SPEC = Spec(
    name="netdev",
    config=NetdevConfig,
    build=NetdevExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=10.0,
    families=FAMILIES,
    series_cap=4_000,
    checkpoint_bytes=0,
    keeps_past=True,
)
