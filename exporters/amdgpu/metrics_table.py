"""Values that AMD's firmware reports only in its binary table (gpu_metrics in sysfs). Pure except for sums.

The layouts are struct gpu_metrics_v1_6 to v1_8 (drivers/gpu/drm/amd/include/kgd_pp_interface.h, Linux 6.16), for MI300
and later. Other layouts are not read.
"""

import struct
from typing import NamedTuple

import msgspec

MAX_CYCLES = 2**31
"""The greatest plausible number of cycles between two polls. A greater number means that the counter restarted."""
_HEADER = struct.Struct("<HBB")
_NONE_U32 = 2**32 - 1  # The driver's mark for a value that the firmware does not have
_REASONS = ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "hw_thermal_slowdown_vr", "hw_thermal_slowdown_hbm")
"""The table's reasons for lowered clocks. A reason that NVIDIA's GPUs also report has NVIDIA's name.

In order: the board's alarm (prochot), the power limit (ppt), the heat of the socket, of the regulators, of the memory.
"""
_CYCLES = struct.Struct("<6I")
_MEMORY = struct.Struct("<I")
_LINKS = struct.Struct("<8H")
_LINK_STATES = {0: False, 1: True}


class _Layout(NamedTuple):
    """The byte offset of each part, None if the table lacks it. The counters of lowered cycles follow ``cycles``."""

    cycles: int
    memory: int
    links: int | None = None


_LAYOUTS = {6: _Layout(32, 72), 7: _Layout(40, 80, 264), 8: _Layout(40, 80, 264)}


class Table(msgspec.Struct, frozen=True):
    """``cycles``: the firmware's cycle counter. ``lowered_cycles``: by reason, the cycles with lowered clocks.

    ``memory_percents``: the used share of the memory bandwidth in percent, summed over the cycles. ``links``: whether
    each XGMI link is up, by link number.
    """

    cycles: int | None = None
    lowered_cycles: dict[str, int] = {}
    memory_percents: int | None = None
    links: dict[int, bool] = {}


def read_table(raw: bytes) -> Table | None:
    """Return the table; None if it is truncated or has an unknown layout."""
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
    """Return the used share (0 to 1) of the memory bandwidth between two polls; None if unknown."""
    if before is None or now is None or before.memory_percents is None or now.memory_percents is None:
        return None
    cycles = _cycles_between(before, now)
    percents = (now.memory_percents - before.memory_percents) % 2**32
    return percents / cycles / 100 if cycles and percents <= 100 * cycles else None


def _cycles_between(before: Table, now: Table) -> int:
    """Return the firmware's cycles between two polls; 0 if the counter is missing, stands still, or restarted."""
    if before.cycles is None or now.cycles is None:
        return 0
    cycles = (now.cycles - before.cycles) % 2**32
    return cycles if cycles < MAX_CYCLES else 0


class LoweredSeconds:
    """How long each reason lowered the clocks of one GPU, in seconds.

    Each poll adds the time since the last poll, multiplied by the reason's share of the firmware's cycles in this time.
    """

    def __init__(self) -> None:
        self._before = (Table(), 0.0)
        self.seconds: dict[str, float] = {}

    def add(self, table: Table, now_seconds: float) -> None:
        """Add a poll at monotonic ``now_seconds``."""
        (before, before_seconds), self._before = self._before, (table, now_seconds)
        cycles = _cycles_between(before, table)
        for reason, count in table.lowered_cycles.items() if table.cycles is not None else ():
            self.seconds.setdefault(reason, 0.0)
            lowered = (count - before.lowered_cycles.get(reason, count)) % 2**32
            if 0 < lowered <= cycles:
                self.seconds[reason] += lowered / cycles * (now_seconds - before_seconds)
