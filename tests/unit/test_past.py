"""The values that the exporters showed in the last minutes, and their rows in a bundle of evidence."""

from collections.abc import Iterable

import pytest
from fake_clock import FakeClock

from agent.app import past as module
from agent.app.past import STEP_SECONDS, STEPS, ShownPast
from agent.core.metrics import Family, Metric
from agent.evidence.registry import Wanted

HEAT = Family("rankwatch_heat_celsius", "gauge", "Heat.", ("gpu",))
WANTED = Wanted("7", {}, ())


class Gpus:
    """A source with the test's value."""

    name = "gpus"
    series_cap = 100

    def __init__(self) -> None:
        self.heat: dict[str, float] = {"0": 40.0}
        self.error: Exception | None = None
        self.is_there = True

    def shown(self) -> bool:
        """Return whether the source shows anything."""
        return self.is_there

    def snapshot(self) -> object:
        """Return a copy of the values."""
        if self.error is not None:
            raise self.error
        return dict(self.heat)

    def families(self, snapshot: object) -> Iterable[Metric]:
        assert isinstance(snapshot, dict)
        rows = HEAT.rows()
        for gpu, value in snapshot.items():
            rows.add((gpu,), value)
        yield rows.metric


class PastBench:
    """A source and its past."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.gpus = Gpus()
        self.past = ShownPast(self.clock, lambda: [self.gpus])

    def step(self, seconds: float = STEP_SECONDS) -> None:
        """Tick, and let time pass."""
        self.past.tick()
        self.clock.advance(seconds)

    async def rows(self) -> list[list[str]]:
        """Return the rows of the table."""
        files = (await self.past.part(WANTED)).files
        self.past.stop()
        return [line.split("\t") for line in files["gpus.tsv"].decode().splitlines()]


async def test_five_minutes_are_kept() -> None:
    """The newest steps of five minutes are kept, one per half minute."""
    bench = PastBench()
    for number in range(3 * (STEPS + 1)):
        bench.gpus.heat["0"] = float(number // 3)
        bench.step(STEP_SECONDS / 3)
    [_, values] = await bench.rows()
    assert values[1:] == [str(number) for number in range(1, STEPS + 1)]


async def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source with more series than the limit keeps the first series."""
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    bench = PastBench()
    bench.gpus.heat = {str(number): 1.0 for number in range(4)}
    bench.step()
    assert len(await bench.rows()) == 1 + 3


async def test_a_source_that_fails_costs_its_own_past() -> None:
    """A failed snapshot, or a source that shows nothing, leaves an empty cell; labels do not break lines."""
    bench = PastBench()
    bench.gpus.heat = {"a\tb\n": 1.0}
    bench.step()
    bench.gpus.error = ValueError("broken")
    bench.step()
    bench.gpus.error, bench.gpus.is_there = None, False
    bench.step()
    assert (await bench.rows())[1] == ["rankwatch_heat_celsius{gpu=a?b?}", "1", "", ""]
