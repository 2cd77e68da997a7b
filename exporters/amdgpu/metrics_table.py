"""What AMD's firmware tells in a table of its own (gpu_metrics in sysfs) and nothing else does. Pure but for sums.

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


_LINKS = struct.Struct("<8H")
_LINK_STATES = {0: False, 1: True}


_PCIE = struct.Struct("<Q16xII")
_NO_PCIE = (_NONE_U64, _NONE_U32, _NONE_U32)
_DIRECTIONS = ("transmit", "receive")
_PCIE_AFTER_MEMORY = 24
"""Where the PCIe link's counts are: recoveries, (replays, and how often these began anew), NAKs sent and received."""


class _Layout(NamedTuple):
    """Where in the table each thing is; None: not there. The cycles by reason follow the cycle counter."""

    energy: int
    cycles: int | None = None
    memory: int | None = None
    links: int | None = None


_LAYOUTS = {
    4: _Layout(24),
    5: _Layout(88),
    6: _Layout(16, cycles=32, memory=72),
    7: _Layout(24, cycles=40, memory=80, links=264),
    8: _Layout(24, cycles=40, memory=80, links=264),
}


class Table(msgspec.Struct, frozen=True):
    """``energy_joules`` since the driver was loaded; ``cycles`` of the firmware, and in how many a reason held.

    ``memory_percents``: the share of the memory's bandwidth that was used, in percent, summed over the cycles.
    ``links``: by the number of each XGMI link that there is, whether it is up. ``pcie_recoveries``: how often the PCIe
    link left its state L0 to recover, ``pcie_naks`` by direction (transmit, receive): packets that were refused.
    """

    energy_joules: float | None = None
    cycles: int | None = None
    lowered_cycles: dict[str, int] = {}
    memory_percents: int | None = None
    links: dict[int, bool] = {}
    pcie_recoveries: int | None = None
    pcie_naks: dict[str, int] = {}


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
        (memory,) = struct.unpack_from("<I", raw, layout.memory) if layout.memory is not None else (_NONE_U32,)
        links = _LINKS.unpack_from(raw, layout.links) if layout.links is not None else ()
        pcie = _PCIE.unpack_from(raw, layout.memory + _PCIE_AFTER_MEMORY) if layout.memory is not None else _NO_PCIE
    except struct.error:
        return None
    recoveries, *naks = pcie
    cycles, *lowered = numbers
    return Table(
        energy_joules=energy * _JOULES if energy != _NONE_U64 else None,
        cycles=cycles if cycles != _NONE_U32 else None,
        lowered_cycles={reason: count for reason, count in zip(_REASONS, lowered, strict=True) if count != _NONE_U32},
        memory_percents=memory if memory != _NONE_U32 else None,
        links={number: _LINK_STATES[state] for number, state in enumerate(links) if state in _LINK_STATES},
        pcie_recoveries=recoveries if recoveries != _NONE_U64 else None,
        pcie_naks={way: count for way, count in zip(_DIRECTIONS, naks, strict=True) if count != _NONE_U32},
    )


def memory_active(before: Table | None, now: Table | None) -> float | None:
    """The share of the memory's bandwidth (0 to 1) that was used between two looks; None where it is not known."""
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

    def add(self, table: Table, now_seconds: float) -> Mapping[str, float]:
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
