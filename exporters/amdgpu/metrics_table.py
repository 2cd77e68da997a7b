"""What AMD's firmware tells in a table of its own (gpu_metrics in sysfs) and nothing else does. Pure but for the sums.

The layouts are those of struct gpu_metrics_v1_4 to v1_8 (drivers/gpu/drm/amd/include/kgd_pp_interface.h, Linux 6.16),
of MI300 and later; other tables are left.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MAX_CYCLES = 2**31
"""Between two looks; more is a counter that began anew."""
_HEADER = struct.Struct("<HBB")
_JOULES = 2.0**-16
_NONE_U32, _NONE_U64 = 2**32 - 1, 2**64 - 1
"""What the driver writes for what the firmware does not tell."""
_REASONS = ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "hw_thermal_slowdown_vr", "hw_thermal_slowdown_hbm")
"""In NVIDIA's words, where it has one: the board's alarm (prochot), the power limit (ppt), heat of the socket, of the
voltage regulators, of the memory."""


class _Layout(NamedTuple):
    """Where in the table the energy is, and the cycle counter, which the cycles by reason follow; None: not there."""

    energy: int
    cycles: int | None


_LAYOUTS = {4: _Layout(24, None), 5: _Layout(88, None), 6: _Layout(16, 32), 7: _Layout(16, 32), 8: _Layout(24, 40)}


class Table(msgspec.Struct, frozen=True):
    """``energy_joules`` since the driver was loaded; ``cycles`` of the firmware, and in how many a reason held."""

    energy_joules: float | None = None
    cycles: int | None = None
    lowered_cycles: dict[str, int] = {}


def read_table(raw: bytes) -> Table | None:
    """Read a table; None for one that is cut, or of a layout that is not known."""
    if len(raw) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(raw)
    layout = _LAYOUTS.get(content) if form == 1 else None
    if layout is None or size > len(raw):
        return None
    try:
        (energy,) = struct.unpack_from("<Q", raw, layout.energy)
        numbers = struct.unpack_from("<6I", raw, layout.cycles) if layout.cycles is not None else (_NONE_U32,) * 6
    except struct.error:
        return None
    cycles, *lowered = numbers
    return Table(
        energy_joules=energy * _JOULES if energy != _NONE_U64 else None,
        cycles=cycles if cycles != _NONE_U32 else None,
        lowered_cycles={reason: count for reason, count in zip(_REASONS, lowered, strict=True) if count != _NONE_U32},
    )


class LoweredSeconds:
    """How long each reason lowered the clocks of one GPU: its share of the firmware's cycles between two looks."""

    def __init__(self) -> None:
        self._before: tuple[Table, float] | None = None
        self.seconds: dict[str, float] = {}

    def add(self, table: Table, now_seconds: float) -> Mapping[str, float]:
        """Take a look at a monotonic time; return the seconds by reason since the first one."""
        before, self._before = self._before, (table, now_seconds)
        if table.cycles is None:
            return self.seconds
        for reason in table.lowered_cycles:
            self.seconds.setdefault(reason, 0.0)
        if before is None or before[0].cycles is None:
            return self.seconds
        cycles = (table.cycles - before[0].cycles) % 2**32
        if not 0 < cycles < MAX_CYCLES:
            return self.seconds
        for reason, count in table.lowered_cycles.items():
            lowered = (count - before[0].lowered_cycles.get(reason, count)) % 2**32
            if lowered <= cycles:
                self.seconds[reason] += lowered / cycles * (now_seconds - before[1])
        return self.seconds
