"""The rendering of many sources, each source separately."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from agent.core.log import Logger
from agent.core.metrics import Family, Metric
from agent.core.threads import OwnThread
from agent.export.exposition import Selection
from agent.export.registry import Registry, Source, SourceCounts


def gauge(name: str, count: int = 1) -> Metric:
    """Return a gauge with ``count`` series."""
    family = Family(name, "gauge", "help", ("n",))
    return Metric(family, [(str(number),) for number in range(count)], list(range(count)))


def source(name: str, *given: Metric, cap: int = 100, shown: bool = True, fails: str = "") -> Source:
    """Return a source of these families; ``fails``: it raises in its snapshot, or after its families."""

    def snapshot() -> Iterable[Metric]:
        if fails == "snapshot":
            raise RuntimeError("no snapshot")
        return given

    def families(given: Iterable[Metric]) -> Iterable[Metric]:
        yield from given
        if fails == "families":
            raise RuntimeError("half way")

    return Source(name, cap, snapshot, families, lambda: shown)


@pytest.fixture
def thread() -> Iterator[OwnThread]:
    """Provide a render thread."""
    made = OwnThread("render")
    yield made
    made.stop()


def registry(thread: OwnThread, *sources: Source) -> Registry:
    """Return a registry of these sources."""
    return Registry(lambda: sources, Logger("test"), thread)


async def lines(made: Registry, **selection: Any) -> list[str]:
    """Return the sample lines of a render."""
    rendered = await made.render(Selection(**selection))
    return [line for line in rendered.body.decode().splitlines() if not line.startswith("#")]


async def test_selection(thread: OwnThread) -> None:
    """Only selected sources with recent data are rendered."""
    one, two = source("one", gauge("a")), source("two", gauge("b"))
    made = registry(thread, one, two, source("three", gauge("c"), shown=False))
    assert made.names() == {"one", "two", "three"}
    assert await lines(made) == ['a{n="0"} 0.0', 'b{n="0"} 0.0']
    assert await lines(made, collect=frozenset({"two"})) == ['b{n="0"} 0.0']
    assert await lines(made, exclude=frozenset({"two"})) == ['a{n="0"} 0.0']


@pytest.mark.parametrize(("fails", "shown"), [("snapshot", []), ("families", ['bad{n="0"} 0.0'])])
async def test_failure_costs_only_its_own(thread: OwnThread, fails: str, shown: list[str]) -> None:
    """A source that raises loses at most its own series, and is counted; it fails until it renders again."""
    sources = [source("bad", gauge("bad"), fails=fails), source("good", gauge("good"))]
    made = Registry(lambda: sources, Logger("test"), thread)
    assert await lines(made) == [*shown, 'good{n="0"} 0.0']
    assert made.counts == {"bad": SourceCounts(len(shown), failures=1, is_failing=True), "good": SourceCounts(1)}
    sources[0] = source("bad", gauge("bad"))
    await lines(made)
    assert made.counts["bad"] == SourceCounts(1, failures=1)


async def test_a_source_that_is_not_shown_has_no_series(thread: OwnThread) -> None:
    """A source that is withheld has 0 series, and does not fail, whatever it did before."""
    sources = [source("one", gauge("a", 3), fails="families")]
    made = Registry(lambda: sources, Logger("test"), thread)
    await lines(made)
    assert made.counts["one"] == SourceCounts(3, failures=1, is_failing=True)
    sources[0] = source("one", gauge("a", 3), shown=False)
    await lines(made)
    assert made.counts["one"] == SourceCounts(failures=1)


async def test_cap(thread: OwnThread) -> None:
    """A series above the limit is dropped and counted."""
    made = registry(thread, source("flood", gauge("a", 3), gauge("b", 3), cap=5), source("good", gauge("good")))
    assert (len(await lines(made)), made.counts["flood"].series, made.counts["flood"].dropped) == (6, 5, 1)


async def test_doubles(thread: OwnThread) -> None:
    """A duplicate series is shown once and counted, because Prometheus would refuse the whole scrape."""
    made = registry(thread, source("double", gauge("a"), gauge("a", 2)))
    assert (sorted(await lines(made)), made.counts["double"].dropped) == (['a{n="0"} 0.0', 'a{n="1"} 1.0'], 1)


async def test_a_family_has_one_source(thread: OwnThread) -> None:
    """If two sources give the same family, the family of the second source is left out and counted."""
    made = registry(thread, source("first", gauge("a")), source("second", gauge("a", 2), gauge("b")))
    assert await lines(made) == ['a{n="0"} 0.0', 'b{n="0"} 0.0']
    assert (made.counts["second"].series, made.counts["second"].dropped) == (1, 2)


async def test_what_is_kept_is_bounded_by_the_cap(thread: OwnThread) -> None:
    """If a source has new series in every render, the agent keeps the encoded labels of at most the limit."""
    given: list[Metric] = []
    made = registry(thread, Source("flood", 5, lambda: given, iter))
    for turn in range(3):
        family = Family("a", "gauge", "help", ("n",))
        given[:] = [Metric(family, [(f"{turn}-{number}",) for number in range(6)], [0.0] * 6)]
        await lines(made)
        assert sum(len(kept.heads) for family in made.heads.by_source.values() for kept in family.values()) == 5
    assert made.counts["flood"].dropped == 3
