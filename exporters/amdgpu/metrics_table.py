"""The values that AMD's firmware gives only in a table of its own (gpu_metrics in sysfs). Pure but for sums.

The layouts are those of struct gpu_metrics_v1_6 to v1_8 (drivers/gpu/drm/amd/include/kgd_pp_interface.h, Linux 6.16),
of MI300 and later; other tables are not read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

MAX_CYCLES = 2**31
"""Between two looks; more is a counter that began anew."""
_HEADER = struct.Struct("<HBB")
_NONE_U32 = 2**32 - 1
"""The driver's mark for a value that the firmware does not give."""
_REASONS = ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "hw_thermal_slowdown_vr", "hw_thermal_slowdown_hbm")
"""In NVIDIA's words, where it has one: the board's alarm (prochot), the power limit (ppt), heat of the socket, of the
voltage regulators, of the memory."""
_CYCLES = struct.Struct("<6I")
_MEMORY = struct.Struct("<I")
_LINKS = struct.Struct("<8H")
_LINK_STATES = {0: False, 1: True}


class _Layout(NamedTuple):
    """The offset of each part; None: the table has none. The cycles by reason follow the cycle counter."""

    cycles: int
    memory: int
    links: int | None = None


_LAYOUTS = {6: _Layout(32, 72), 7: _Layout(40, 80, 264), 8: _Layout(40, 80, 264)}


class Table(msgspec.Struct, frozen=True):
    """``cycles`` of the firmware, and ``lowered_cycles`` in which a reason held.

    ``memory_percents``: the share of the memory's bandwidth that was used, in percent, summed over the cycles.
    ``links``: whether each XGMI link is up, by its number.
    """

    cycles: int | None = None
    lowered_cycles: dict[str, int] = {}
    memory_percents: int | None = None
    links: dict[int, bool] = {}


def read_table(raw: bytes) -> Table | None:
    """Read a table; None for one that is cut, or of an unknown layout."""
    if len(raw) < _HEADER.size:
        return None
    size, form, content = _HEADER.unpack_from(raw)
    layout = _LAYOUTS.get(content) if form == 1 else None
    if layout is None or size > len(raw):
        return None
    try:
        cycles, *lowered = _CYCLES.unpack_from(raw, layout.cycles)
        (memory,) = _MEMORY.unpack_from(raw, layout.memory)
        links = _LINKS.unpack_from(raw, layout.links) if layout.links is not None else ()
    except struct.error:
        return None
    return Table(
        cycles=cycles if cycles != _NONE_U32 else None,
        lowered_cycles={reason: count for reason, count in zip(_REASONS, lowered, strict=True) if count != _NONE_U32},
        memory_percents=memory if memory != _NONE_U32 else None,
        links={number: _LINK_STATES[state] for number, state in enumerate(links) if state in _LINK_STATES},
    )


def memory_active(before: Table | None, now: Table | None) -> float | None:
    """The share of the memory's bandwidth (0 to 1) that was used between two looks; None where it is unknown."""
    if before is None or now is None or before.memory_percents is None or now.memory_percents is None:
        return None
    cycles = _cycles_between(before, now)
    percents = (now.memory_percents - before.memory_percents) % 2**32
    return percents / cycles / 100 if cycles and percents <= 100 * cycles else None


def _cycles_between(before: Table, now: Table) -> int:
    """The firmware's cycles between two looks; 0 where it does not count, stands still, or began anew."""
    if before.cycles is None or now.cycles is None:
        return 0
    cycles = (now.cycles - before.cycles) % 2**32
    return cycles if cycles < MAX_CYCLES else 0


class LoweredSeconds:
    """How long each reason lowered the clocks of one GPU: its share of the firmware's cycles between two looks."""

    def __init__(self) -> None:
        self._before: tuple[Table, float] | None = None
        self.seconds: dict[str, float] = {}

    def add(self, table: Table, now_seconds: float) -> dict[str, float]:
        """Take a look at a monotonic time; return the seconds by reason since the first one."""
        before, self._before = self._before, (table, now_seconds)
        if table.cycles is None:
            return self.seconds
        for reason in table.lowered_cycles:
            self.seconds.setdefault(reason, 0.0)
        cycles = _cycles_between(before[0], table) if before is not None else 0
        if before is None or not cycles:
            return self.seconds
        for reason, count in table.lowered_cycles.items():
            lowered = (count - before[0].lowered_cycles.get(reason, count)) % 2**32
            if lowered <= cycles:
                self.seconds[reason] += lowered / cycles * (now_seconds - before[1])
        return self.seconds
