"""An exception anywhere in an exporter's update fails at most that update; the next update succeeds."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from bench import DATA, Bench

from agent.app.discovery import exporter_names
from agent.sdk.exporter import NoData

ROOT = Path(__file__).parents[2]
NAMES = exporter_names()
FOLDERS = (f"{ROOT}/exporters/", f"{ROOT}/agent/tail/", f"{ROOT}/agent/system/")

SMALLER = {"inspector": 'paths: ["{root}/base8"]'}
"""Sections that make an update short, because the tests need hundreds of them."""

TURN_SECONDS = 20.0
"""An update ends within this time on a busy machine."""

WHOLE_TURN = {
    "DirectoryReader.owned", "DirectoryReader.owned.<locals>.<dictcomp>", "Reclaimer.run", "InspectorExporter._apply",
    "WatchedDirectory.note", "WatchedDirectory.note.<locals>.<genexpr>",
}  # fmt: skip
"""Functions that do not work on a single file; if they fail, the update may export records late or never."""


class Injected(Exception):  # noqa: N818  # no error of anybody's
    """The injected exception."""


Call = tuple[str, str, int]
"""A function, as its file, its qualified name and its first line."""


def name_of(code: CodeType) -> Call:
    """Return the name of a function."""
    return code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname, code.co_firstlineno


@contextmanager
def traced(hook: Any) -> Iterator[None]:
    """Call ``hook`` with the code of every called function of rankwatch, on each thread that starts in this context."""

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            hook(frame.f_code)

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as it was


async def calls_of(name: str) -> tuple[list[Call], Counter[str]]:
    """Return the functions that an update of an exporter calls, in the order of their first calls.

    Also return the operations that the exporter shows afterwards."""
    bench = Bench(name, DATA / name, SMALLER.get(name, ""))
    calls: dict[Call, None] = {}
    with traced(lambda code: calls.setdefault(name_of(code))):
        await bench.begin()
        calls.clear()  # a failed start is refused, and leaves nothing
        await update_in_time(bench)
    bench.ranks.tick()
    whole = operations(bench)
    await bench.end()
    return list(calls), whole


def operations(bench: Bench) -> Counter[str]:
    """Return the number of operations that an exporter shows for each rank; each rank has its own file."""
    counts: Counter[str] = Counter()
    for family in bench.families(bench.exporter.snapshot()):
        if family.family.name == "rankwatch_collective_operations_total":
            position = family.family.labels.index("rank")
            for labels, value in zip(family.labels, family.values, strict=True):
                counts[labels[position]] += int(value)
    return counts


async def failing(name: str, call: Call, whole: Counter[str]) -> str:
    """Return the mistakes after ``call`` has failed once in an exporter's first update; empty if none.

    ``whole``: the operations without a failure; one rank can have fewer."""
    bench = Bench(name, DATA / name, SMALLER.get(name, ""))
    hit: list[Call] = []

    def fail(code: CodeType) -> None:
        if not hit and armed and name_of(code) == call:
            hit.append(call)
            raise Injected(call)

    armed: list[bool] = []
    with traced(fail):
        await bench.begin()
        armed.append(True)
        try:
            await bench.exporter.update()
        except (Injected, NoData):
            pass
        except Exception as error:  # noqa: BLE001  # told below
            return f"{call}: the update ended in {error!r}"
    armed.clear()  # threads that started in this context are still traced
    try:
        deadline = time.monotonic() + TURN_SECONDS
        looks, short = 0, [*whole]
        while looks < 3 or (len(short) > 1 and call[1] not in WHOLE_TURN and time.monotonic() < deadline):
            bench.clock.advance(5.0)
            await update_in_time(bench)
            bench.ranks.tick()
            short = [rank for rank, count in whole.items() if operations(bench)[rank] != count]
            looks += 1
        if len(short) > 1 and call[1] not in WHOLE_TURN:
            return f"{call}: ranks {short} have lost operations"
    except Exception as error:  # noqa: BLE001  # told below
        return f"{call}: the next update ended in {error!r}"
    finally:
        await bench.end()
    return ""


async def update_in_time(bench: Bench) -> None:
    """Update until there is data, because on a busy machine the first update can come too early."""
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            await bench.exporter.update()
        except NoData:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
            bench.clock.advance(1.0)  # the result is published at the next due update
        else:
            return


@pytest.mark.slow
@pytest.mark.timeout(300)
# Exceptions are injected into closing generators, too.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <generator:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_fails_costs_one_turn(name: str) -> None:
    """Whichever call of an update raises, the next update succeeds, and other files lose nothing."""
    calls, whole = asyncio.run(calls_of(name))
    assert calls  # a comprehension is no call in Python 3.12 and later
    failures = [asyncio.run(failing(name, call, whole)) for call in calls]
    assert [failure for failure in failures if failure] == []
