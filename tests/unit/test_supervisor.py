"""The supervisor: start, reload section by section, and stop."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from fake_clock import FakeClock
from lent import until
from rank_table import environment, facts
from scripted import Idle, Section, plan, state_file, supervisor

from agent.app.discovery import ExporterPlan
from agent.core.checkpoint import SAVE_INTERVAL_SECONDS, StateFile
from agent.core.threads import OwnThread
from agent.hardware.ledger import CheckState, HealthLedger
from agent.ranks.rank.verdict_thresholds import Thresholds
from agent.ranks.table import RankTable
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Context
from agent.sdk.hardware import Subject
from agent.sdk.system import ProcFS
from agent.tail.hang_guard import HangGuard, WaitingCall


class Made(Idle):
    """An exporter that records its starts and drains in ``events``."""

    def __init__(self, name: str, section: Section, events: list[str]) -> None:
        self.label = f"{name}{section.number}"
        self._refuse = section.refuse
        self._events = events

    async def start(self, ctx: Context) -> None:
        ctx.checks.report(Subject("nic", self.label), "rdma_port_down", CheckState.FAILED)
        if self._refuse:
            raise RuntimeError("refused")
        restored = ctx.state.restored
        self._state = ctx.state
        self._events.append(f"start {self.label} from {restored.decode() if restored else 'nothing'}")

    async def drain(self) -> None:
        await asyncio.sleep(0.02)
        self._state.publish(self.label.encode())
        self._events.append(f"drain {self.label}")


class Bench:
    """A supervisor, its plans, and the events of its exporters."""

    def __init__(self, state: StateFile) -> None:
        self.events: list[str] = []
        self.supervisor = supervisor(state)

    def plan(self, **sections: Section) -> ExporterPlan:
        return plan(lambda name, section: Made(name, section, self.events), **sections)

    def take(self) -> list[str]:
        taken, self.events[:] = list(self.events), []
        return taken


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Provide a bench with a checkpoint file; stop it at the end."""
    made = Bench(state_file(tmp_path))
    yield made
    await made.supervisor.stop()


async def test_a_start_that_fails_costs_the_others_nothing(bench: Bench) -> None:
    """If an exporter refuses to start, it is shown as broken and the others run."""
    await bench.supervisor.begin(bench.plan(a=Section(), b=Section(refuse=True)))
    assert (set(bench.supervisor.running), bench.supervisor.broken) == ({"a"}, {"b"})


async def test_reload_touches_what_changed(bench: Bench) -> None:
    """On reload unchanged exporters go on, changed ones restart from their checkpoint, and removed ones are drained."""
    await bench.supervisor.begin(bench.plan(a=Section(), b=Section(), c=Section()))
    bench.take()
    changed = bench.plan(a=Section(), b=Section(number=1), d=Section())
    thresholds = Thresholds(killed_behind_seconds=1)
    assert await bench.supervisor.apply(msgspec.structs.replace(changed, thresholds=thresholds))
    assert bench.supervisor.ranks.liveness.thresholds == thresholds
    assert sorted(bench.take()) == ["drain b0", "drain c0", "start b1 from b0", "start d0 from nothing"]
    assert set(bench.supervisor.running) == {"a", "b", "d"}


async def test_all_start_or_none(bench: Bench) -> None:
    """If one changed section does not start, all old sections run again from their checkpoints."""
    await bench.supervisor.begin(bench.plan(a=Section(), b=Section()))
    bench.take()
    assert not await bench.supervisor.apply(bench.plan(a=Section(number=1), b=Section(number=1, refuse=True)))
    assert bench.take() == [
        "drain a0", "drain b0", "start a1 from a0", "drain a1", "start a0 from a1", "start b0 from b0",
    ]  # fmt: skip
    assert {name: run.config for name, run in bench.supervisor.running.items()} == dict.fromkeys("ab", Section())


async def test_old_one_that_does_not_come_back_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an old exporter refuses to start again after a failed reload, it is shown as down."""
    await bench.supervisor.begin(bench.plan(a=Section()))
    monkeypatch.setattr(Made, "start", Mock(side_effect=RuntimeError("refused")))
    assert not await bench.supervisor.apply(bench.plan(a=Section(number=1)))
    assert (bench.supervisor.running, bench.supervisor.broken) == ({}, {"a"})


async def test_a_renewed_one_that_does_not_come_back_refuses_no_reload(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an exporter that hung refuses to start again, it is shown as down, and a later reload succeeds."""
    await bench.supervisor.begin(bench.plan(a=Section()))
    monkeypatch.setattr(HangGuard, "leave_out", lambda *_: True)
    with monkeypatch.context() as patch:
        patch.setattr(Made, "start", Mock(side_effect=RuntimeError("refused")))
        await bench.supervisor._renew([(bench.supervisor.running["a"], WaitingCall("/x", "/x", 0.0))])
        assert (bench.supervisor.running, bench.supervisor.broken) == ({}, {"a"})
        assert await bench.supervisor.apply(bench.plan(a=Section()))
    assert await bench.supervisor.apply(bench.plan(a=Section()))
    assert (set(bench.supervisor.running), bench.supervisor.broken) == ({"a"}, set())


async def test_a_stop_while_a_failed_reload_is_undone(bench: Bench) -> None:
    """If the agent stops while it undoes a reload, each started exporter and its lease are drained."""
    await bench.supervisor.begin(bench.plan(a=Section()))
    reload = asyncio.ensure_future(bench.supervisor.apply(bench.plan(a=Section(number=1), b=Section(refuse=True))))
    await until(lambda: "start a1 from a0" in bench.events)
    reload.cancel()
    await asyncio.wait({reload})
    await bench.supervisor.stop()
    assert "drain a1" in bench.take()


async def test_stop_writes_the_checkpoint(bench: Bench, tmp_path: Path) -> None:
    """The checkpoint has the sections that exporters publish in their drain."""
    await bench.supervisor.begin(bench.plan(a=Section()))
    await bench.supervisor.stop()
    again = state_file(tmp_path)
    thread = OwnThread("load")  # loading blocks, and a blocked loop fails the test
    await thread.call(again.load)
    thread.stop()
    assert again.section("exporter a").restored == b"a0"


@pytest.mark.parametrize("name", ["ranks", "checks"])
@pytest.mark.parametrize("error", [ValueError("v"), KeyError("k"), RecursionError(), TypeError("t"), OverflowError()])
def test_a_table_that_cannot_be_loaded_starts_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    """If loading a table's section raises an error, the agent starts with an empty table, with no half-loaded entry."""
    state = state_file(tmp_path)
    state.section(name).publish(b"saved")
    loaded = []

    def load(self: Any, section: bytes) -> None:
        loaded.append(self)
        raise error

    monkeypatch.setattr(RankTable if name == "ranks" else HealthLedger, "load", load)
    own = supervisor(state)
    assert len(loaded) == 1
    assert own.ranks is not loaded[0]
    assert own.ranks.snapshot().ranks == ()
    assert list(own.ledger.entries()) == []


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Return the working directory of a process, as read from /proc; its name is not UTF-8."""
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    process = subprocess.Popen([sys.executable, "-c", "input()"], cwd=odd, stdin=subprocess.PIPE)
    try:
        return ProcFS(Path("/proc")).directory(process.pid)
    finally:
        process.communicate(b"\n")


async def test_a_working_directory_that_is_no_text_ends_no_tick(directory: str) -> None:
    """A working directory with a name that is not UTF-8 does not end the supervisor's loop."""
    own = supervisor()
    odd = msgspec.structs.replace(facts(10, environment(0)), directory=directory)
    RankWriter(own.ranks, "process").observe_process(odd)
    beat = asyncio.Event()
    run = asyncio.create_task(own.run(beat.set))
    await asyncio.wait({run}, timeout=0.3)
    assert not run.done(), run.exception()
    run.cancel()


async def test_an_idle_agent_encodes_its_tables_when_a_save_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose tables do not change encodes them every SAVE_INTERVAL_SECONDS, and not at each tick."""
    monkeypatch.setattr("agent.app.supervisor.TICK_SECONDS", 0.001)
    clock, state, beat, encoded = FakeClock(), state_file(tmp_path), asyncio.Event(), []
    own, began = supervisor(state, clock), clock.now
    monkeypatch.setattr(RankTable, "dump", lambda _table: encoded.append(clock.now - began) or b"same")
    run = asyncio.create_task(own.run(beat.set))
    while clock.now < began + 4 * SAVE_INTERVAL_SECONDS:
        await beat.wait()
        beat.clear()
        clock.now += not state.changed()
    run.cancel()
    assert encoded[:4] == [number * SAVE_INTERVAL_SECONDS for number in range(4)]
