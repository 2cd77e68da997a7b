"""Starting, reloading section by section, and stopping."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock

from agent.app.discovery import ExporterPlan, Prepared
from agent.app.supervisor import Supervisor
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.core.metrics import Metric
from agent.core.threads import OwnThread
from agent.hardware.ledger import CheckState, HealthLedger
from agent.ranks.table import RankTable
from agent.sdk.exporter import Context, ExporterConfig, Roots, Spec
from agent.sdk.hardware import Subject


class Config(ExporterConfig, frozen=True, kw_only=True):
    """A section; ``refuse`` makes the start fail."""

    number: int = 0
    refuse: bool = False


class Made:
    """An exporter that notes what happens to it in ``events``."""

    def __init__(self, name: str, config: Config, events: list[str]) -> None:
        self.label = f"{name}{config.number}"
        self._refuse = config.refuse
        self._events = events

    async def start(self, ctx: Context) -> None:
        ctx.checks.report(Subject("nic", self.label), "rdma_port_down", CheckState.FAILED)
        if self._refuse:
            raise RuntimeError("refused")
        restored = ctx.state.restored
        self._state = ctx.state
        self._events.append(f"start {self.label} from {restored.decode() if restored else 'nothing'}")

    async def update(self) -> None:
        pass

    def snapshot(self) -> object:
        return None

    def families(self, snapshot: Any) -> Iterable[Metric]:
        return ()

    async def drain(self) -> None:
        self._state.publish(self.label.encode())
        self._events.append(f"drain {self.label}")


class Bench:
    """A supervisor and plans for it."""

    def __init__(self, state: StateFile) -> None:
        self.events: list[str] = []
        self.supervisor = Supervisor(FakeClock(), "here", Roots(), state)

    def plan(self, **configs: Config) -> ExporterPlan:
        def prepared(name: str, config: Config) -> Prepared:
            spec = Spec(
                name, Config, lambda section: Made(name, section, self.events), 60.0, 1.0, (), 1.0,
                checkpoint_bytes=1024,
            )  # fmt: skip
            return Prepared(spec, config)

        return ExporterPlan({name: prepared(name, config) for name, config in configs.items()}, ())

    def take(self) -> list[str]:
        taken, self.events[:] = list(self.events), []
        return taken


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench with a checkpoint file, which is stopped at the end."""
    made = Bench(StateFile(tmp_path / "checkpoint", "boot", Logger("test")))
    yield made
    await made.supervisor.stop()


async def test_a_start_that_fails_costs_the_others_nothing(bench: Bench) -> None:
    """At the start, an exporter that refuses is shown as broken and the others run."""
    await bench.supervisor.begin(bench.plan(a=Config(), b=Config(refuse=True)))
    assert (set(bench.supervisor.running), bench.supervisor.broken) == ({"a"}, {"b"})


async def test_reload_touches_what_changed(bench: Bench) -> None:
    """Equal sections stay; a changed one is drained and starts from what it published; a removed one is drained."""
    await bench.supervisor.begin(bench.plan(a=Config(), b=Config(), c=Config()))
    bench.take()
    assert await bench.supervisor.apply(bench.plan(a=Config(), b=Config(number=1), d=Config()))
    assert sorted(bench.take()) == ["drain b0", "drain c0", "start b1 from b0", "start d0 from nothing"]
    assert set(bench.supervisor.running) == {"a", "b", "d"}


async def test_all_start_or_none(bench: Bench) -> None:
    """When one of the changed sections refuses to start, all old ones run again from what they published."""
    await bench.supervisor.begin(bench.plan(a=Config(), b=Config()))
    bench.take()
    assert not await bench.supervisor.apply(bench.plan(a=Config(number=1), b=Config(number=1, refuse=True)))
    assert bench.take() == [
        "drain a0", "drain b0", "start a1 from a0", "drain a1", "start a0 from a1", "start b0 from b0",
    ]  # fmt: skip
    assert {name: running.config for name, running in bench.supervisor.running.items()} == {
        "a": Config(),
        "b": Config(),
    }


async def test_old_one_that_does_not_come_back_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reload that failed, an old exporter that refuses to start again is shown as down."""
    await bench.supervisor.begin(bench.plan(a=Config()))

    async def refuse(self: Made, ctx: Context) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr(Made, "start", refuse)
    assert not await bench.supervisor.apply(bench.plan(a=Config(number=1)))
    assert (bench.supervisor.running, bench.supervisor.broken) == ({}, {"a"})


async def test_stop_writes_the_checkpoint(bench: Bench, tmp_path: Path) -> None:
    """What exporters publish while they drain is in the file afterwards."""
    await bench.supervisor.begin(bench.plan(a=Config()))
    await bench.supervisor.stop()
    again = StateFile(tmp_path / "checkpoint", "boot", Logger("test"))
    thread = OwnThread("load")  # loading blocks, and a blocked loop fails the test
    await thread.call(again.load)
    thread.stop()
    assert again.section("exporter a").restored == b"a0"


@pytest.mark.parametrize("name", ["ranks", "checks"])
@pytest.mark.parametrize("error", [ValueError("v"), KeyError("k"), RecursionError(), TypeError("t"), OverflowError()])
def test_a_table_that_cannot_be_loaded_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    """Whatever loading a table's section raises, the agent starts with an empty one: nothing of a half-loaded one."""
    state = StateFile(tmp_path / "checkpoint", "boot", Logger("test"))
    state.section(name).publish(b"saved")
    loaded = []

    def load(self: Any, section: bytes) -> None:
        loaded.append(self)
        raise error

    monkeypatch.setattr(RankTable if name == "ranks" else HealthLedger, "load", load)
    supervisor = Supervisor(FakeClock(), "here", Roots(), state)
    assert len(loaded) == 1
    assert supervisor.ranks is not loaded[0]
    assert supervisor.ranks.snapshot().ranks == ()
    assert list(supervisor.ledger.entries()) == []
