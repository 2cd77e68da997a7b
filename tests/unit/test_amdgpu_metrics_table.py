"""The firmware's table of AMD's GPUs: the seconds of lowered clocks, and the memory's bandwidth."""

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from exporters.amdgpu.metrics_table import MAX_CYCLES, LoweredSeconds, Table, memory_active, read_table

ALL = ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "hw_thermal_slowdown_vr", "hw_thermal_slowdown_hbm")


def table(content: int, values: dict[int, bytes], *, form: int = 1, size: int = 400) -> bytes:
    """A table with ``values`` at their offsets, and nothing told else."""
    raw = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", raw, 0, size, form, content)
    for offset, value in values.items():
        raw[offset : offset + len(value)] = value
    return bytes(raw)


CYCLES = struct.pack("<6I", 1000, 1, 2, 3, 4, 5)
LOWERED = dict(zip(ALL, range(1, 6), strict=True))
MEMORY = struct.pack("<I", 6000)
LINKS = struct.pack("<8H", 1, 0, 1, 1, 1, 2, 0xFFFF, 0xFFFF)
STATES = {0: True, 1: False, 2: True, 3: True, 4: True}


def test_tables() -> None:
    """Each layout has its offsets; a value that the firmware does not give is absent; other and cut tables are none."""
    whole = {40: CYCLES, 80: MEMORY, 264: LINKS}
    tables: list[tuple[bytes, Table | None]] = [
        (table(6, {32: CYCLES, 72: MEMORY}), Table(1000, LOWERED, 6000)),
        (table(7, whole), Table(1000, LOWERED, 6000, STATES)),
        (table(8, whole), Table(1000, LOWERED, 6000, STATES)),
        (table(6, {32: CYCLES[:8]}), Table(1000, {"hw_slowdown": 1})),
        (table(6, {}), Table()),
        (table(5, whole), None),
        (table(9, whole), None),
        (table(7, whole, form=2), None),
        (table(7, whole)[:-1], None),
        (table(6, {}, size=40), None),
        (b"", None),
        (b"text", None),
    ]
    for raw, expected in tables:
        assert read_table(raw) == expected


@given(st.binary(max_size=300))
def test_any_bytes_are_read(raw: bytes) -> None:
    """Nothing that the driver could write is an error."""
    read_table(raw)


def at(cycles: int | None, **lowered: int) -> Table:
    """A table at so many cycles."""
    return Table(cycles, lowered)


def test_how_long_the_clocks_were_lowered() -> None:
    """Ten seconds apart: a reason's share of the cycles is its share of the time; counters wrap and begin anew."""
    cases: list[Any] = [
        ([at(100, hw_slowdown=7)], {"hw_slowdown": 0.0}),
        ([at(100, hw_slowdown=7), at(1100, hw_slowdown=257)], {"hw_slowdown": 2.5}),
        ([at(2**32 - 500, hw_slowdown=2**32 - 2), at(500, hw_slowdown=498)], {"hw_slowdown": 5.0}),
        ([at(9000, hw_slowdown=9000), at(100, hw_slowdown=100)], {"hw_slowdown": 0.0}),
        ([at(0, hw_slowdown=0), at(MAX_CYCLES, hw_slowdown=MAX_CYCLES)], {"hw_slowdown": 0.0}),
        ([at(0, hw_slowdown=0), at(MAX_CYCLES - 1, hw_slowdown=MAX_CYCLES - 1)], {"hw_slowdown": 10.0}),
        ([at(100, hw_slowdown=7), at(100, hw_slowdown=7)], {"hw_slowdown": 0.0}),
        ([at(100, hw_slowdown=7), at(200, hw_slowdown=300)], {"hw_slowdown": 0.0}),
        ([at(None), at(100, hw_slowdown=7), at(200, hw_slowdown=57)], {"hw_slowdown": 5.0}),
        ([at(100, hw_slowdown=7), at(None)], {"hw_slowdown": 0.0}),
        ([at(None)], {}),
    ]
    for tables, seconds in cases:
        lowered = LoweredSeconds()
        for number, each in enumerate(tables):
            lowered.add(each, 1000.0 + 10.0 * number)
        assert lowered.seconds == pytest.approx(seconds)


def summed(cycles: int | None, percents: int | None) -> Table:
    """A table at so many cycles with so many percents."""
    return Table(cycles, memory_percents=percents)


def test_the_memorys_share() -> None:
    """Percents by cycles are a share; it is not known where either is missing, began anew or is too much."""
    cases: list[Any] = [
        (summed(1000, 6000), summed(2000, 48_000), 0.42),
        (summed(2**32 - 500, 2**32 - 10), summed(500, 24_990), 0.25),
        (summed(1000, 6000), summed(2000, 106_000), 1.0),
        (summed(1000, 6000), summed(2000, 106_001), None),  # more than all of it
        (summed(1000, 6000), summed(1000, 6000), None),
        (summed(9000, 6000), summed(100, 10), None),
        (summed(0, 0), summed(MAX_CYCLES, 0), None),
        (summed(None, 6000), summed(2000, 48_000), None),
        (summed(1000, None), summed(2000, 48_000), None),
        (summed(1000, 6000), summed(2000, None), None),
        (None, summed(2000, 48_000), None),
        (summed(1000, 6000), None, None),
    ]
    for before, now, share in cases:
        assert memory_active(before, now) == share
