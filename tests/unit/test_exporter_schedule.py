"""The schedule of one exporter."""

import asyncio
from typing import Literal

import pytest
from fake_clock import FakeClock
from rank_table import RankTable
from scripted import Idle, state_file

from agent.app.exporter_schedule import STALE_FLOOR_SECONDS, Running, rest_seconds
from agent.app.lease import Lease, Lender
from agent.sdk.exporter import ExporterConfig, NoData, Roots, Spec


class Scripted(Idle):
    """An exporter with scripted updates."""

    def __init__(self) -> None:
        self.outcome: BaseException | asyncio.Event | None = None
        self.updates = self.under_way = self.most_under_way = 0
        self.drained = False
        self.drain_hangs = False

    async def update(self) -> None:
        self.updates += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if isinstance(self.outcome, asyncio.Event):
                await self.outcome.wait()
            elif self.outcome is not None:
                raise self.outcome
        finally:
            self.under_way -= 1

    async def drain(self) -> None:
        if self.drain_hangs:
            await asyncio.Event().wait()
        self.drained = True


class Bench:
    """A running scripted exporter."""

    def __init__(self, enabled: bool | Literal["auto"] = "auto", interval: float = 0.001) -> None:
        self.clock = FakeClock()
        self.exporter = Scripted()
        spec = Spec("scripted", ExporterConfig, lambda _: self.exporter, interval, 0.02, (), drain_seconds=0.02)
        state = state_file()
        ranks = RankTable(self.clock, "here")
        lender = Lender(roots=Roots(), clock=self.clock, hostname="here", ranks=ranks, state=state, once=False)
        lease = Lease(lender, "scripted")
        self.ledger, self.checks = lender.ledger, lease.context.checks
        self.running = Running(spec, ExporterConfig(enabled=enabled), self.exporter, lease, self.clock)


@pytest.fixture
def bench() -> Bench:
    """Provide a bench in mode auto."""
    return Bench()


async def test_absent_source_is_well_in_mode_auto(bench: Bench) -> None:
    """NoData is no failure in mode auto, and shows no series."""
    bench.exporter.outcome = NoData()
    await bench.running.update_once()
    assert (bench.running.ok, bench.running.present, bench.running.failures) == (True, False, 0)
    assert not bench.running.shown()


async def test_failure_is_counted_and_ages(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A failing source keeps its series for a short time; each failure is counted, and logged if its text changed."""
    await bench.running.update_once()
    for text in ("broken", "broken", "worse"):
        bench.exporter.outcome = RuntimeError(text)
        await bench.running.update_once()
    assert (bench.running.ok, bench.running.failures, bench.running.shown()) == (False, 3, True)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    bench.clock.advance(STALE_FLOOR_SECONDS + 1)
    assert not bench.running.shown()


async def test_an_exporter_that_is_down_has_a_reason() -> None:
    """The reason is the error's text; for an error without text it is the error's kind."""
    bench = Bench(enabled=True)
    for error, why in ((NoData(), "its source is absent"), (NoData("no x"), "no x"), (RuntimeError(), "RuntimeError")):
        bench.exporter.outcome = error
        await bench.running.update_once()
        assert (bench.running.ok, bench.running.why) == (False, why)


async def test_late_update_is_neither_cancelled_nor_doubled(bench: Bench) -> None:
    """A late update is counted once and goes on; the next update starts only after the late one has returned."""
    gate = asyncio.Event()
    bench.exporter.outcome = gate
    bench.running.begin()
    while bench.running.late == 0:
        await asyncio.sleep(0.001)
    assert (bench.running.ok, bench.running.why) == (False, "an update takes longer than 0.02 s")
    assert bench.exporter.updates == 1
    bench.exporter.outcome = None
    gate.set()
    while bench.exporter.updates < 3:
        await asyncio.sleep(0.001)
    assert (bench.exporter.most_under_way, bench.running.late, bench.running.ok) == (1, 1, True)
    await bench.running.end()


@pytest.mark.parametrize(("took", "pause"), [(0.25, 0.75), (1.0, 0.5), (5.0, 0.5)])
def test_updates_do_not_run_back_to_back(took: float, pause: float) -> None:
    """After an update that took its interval or longer, half an interval passes before the next one."""
    assert rest_seconds(took, interval_seconds=1.0) == pause


async def test_end_does_not_wait_for_ever(bench: Bench) -> None:
    """An update that never returns, and a drain that hangs, delay the end only up to their limits."""
    bench.exporter.outcome = asyncio.Event()
    bench.exporter.drain_hangs = True
    bench.running.begin()
    while bench.exporter.updates == 0:
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await bench.running.end()
    assert not bench.exporter.drained
