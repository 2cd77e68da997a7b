"""Calls that hang: which sources are left out, for which calls, and until when."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
from lent import until
from scripted import Idle, Section, plan, state_file, supervisor

from agent.sdk.exporter import Context
from agent.tail import hang_guard
from agent.tail.hang_guard import HangGuard, HungSources, WaitingCall, device_source

DEVICE = device_source(os.makedev(0, 41))


def refused(guard: HangGuard, path: str, *others: str, source: str = "") -> bool:
    """Return True if the guard refuses the call."""
    try:
        with guard.using(path, *others, source=source):
            return False
    except OSError:
        return True


def test_what_hangs_is_left_out_until_the_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All guards refuse calls to a hung call's source until the hung call has returned."""
    monkeypatch.setattr(hang_guard, "HUNG_SECONDS", -1.0)
    hung = HungSources()
    guard, other = HangGuard(hung), HangGuard(hung)
    with guard.using("/outer"):
        with guard.using("/lustre/x", source=DEVICE):
            call = guard.hung()
            assert call is not None and guard.leave_out(call)
            assert refused(other, "/lustre/y", DEVICE) and refused(other, "/lustre/y", source=DEVICE)
            assert other.why().startswith("/lustre/y is not read")
            assert not refused(other, "/lustre/x") and not refused(other, "/outer")
        outer = guard.hung()
        assert outer is not None and outer.path == "/outer"
        assert not refused(other, "/lustre/y", DEVICE) and other.why() == ""
        assert guard.leave_out(outer) and refused(other, "/outer") and not refused(other, "/outer/below")
    assert guard.hung() is None and not refused(other, "/outer")


def test_a_call_that_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung call cannot be left out above the limit, or if its source was left out before the call."""
    hung = HungSources()
    calls = [WaitingCall(f"/{number}", f"/{number}", time.monotonic()) for number in range(hang_guard.MAX_HUNG + 1)]
    entries = [hung.add(call) for call in calls]
    assert entries.count(None) == 1 and entries[-1] is None
    first = entries[0]
    assert first is not None and hung.add(calls[0]) is None
    hung.remove(first)
    assert hung.all() == {call.source for call in calls[1:-1]}
    assert hung.add(calls[1]._replace(since=time.monotonic())) is None, "the guard should have refused this call"
    assert hung.add(calls[1]) is not None, "this call of another exporter began before"
    monkeypatch.setattr(hang_guard, "HUNG_SECONDS", -1.0)
    guard = HangGuard(hung)
    with guard.using("/x"):
        call = guard.hung()
        assert call is not None and not guard.leave_out(call) and guard.hung() is None
        guard.note_answer()
        assert guard.hung() is not None, "this is another call"
    assert guard.hung() is None
    guard.close()
    assert refused(guard, "/y")
    with guard.noting("/y", DEVICE):
        call = guard.hung()
    assert call is not None and call.source == DEVICE, "a late update closes its files"


def test_a_call_that_returns_while_it_is_left_out() -> None:
    """A source does not stay left out if its call has already returned."""
    hung = HungSources()
    guard = HangGuard(hung)
    assert not guard.leave_out(WaitingCall("/x", "/x", 0.0)) and not hung.all()


class Reader(Idle):
    """An exporter whose thread reads one path after the other; a path below /lustre hangs until ``released``."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released
        self.calls: list[str] = []

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        self._thread = ctx.thread("reader")

    async def update(self) -> None:
        await self._thread.call(self._read)

    def _read(self) -> None:
        for path in ("/var/log/x", "/lustre/x", "/var/log/y"):
            try:
                with self.ctx.hangs.using(path):
                    hangs = path.startswith("/lustre") and not self._released.wait(30.0)
                    assert not hangs
                    self.calls.append(path)
            except OSError:
                self.calls.append(f"not {path}")


async def test_an_exporter_that_hangs_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run reads the other file systems, and the hung one when the old run's call has returned."""
    monkeypatch.setattr(hang_guard, "HUNG_SECONDS", 0.02)
    monkeypatch.setattr("agent.app.supervisor.TICK_SECONDS", 0.01)
    released, runs = threading.Event(), list[Reader]()

    def make(_name: str, _section: Section) -> Reader:
        runs.append(Reader(released))
        return runs[-1]

    agent = supervisor(state_file())
    await agent.begin(plan(make, interval=0.01, drain=0.05, a=Section()))
    ticks = asyncio.ensure_future(agent.run(lambda: None))
    await until(lambda: len(runs) == 2 and len(runs[1].calls) >= 6)
    assert runs[0].calls == ["/var/log/x"]
    assert set(runs[1].calls) == {"/var/log/x", "not /lustre/x", "/var/log/y"}
    assert "/lustre/x is not read" in agent.running["a"].why
    released.set()
    await until(lambda: "/lustre/x" in runs[1].calls and len(runs[0].calls) == 3)
    assert runs[0].calls == ["/var/log/x", "/lustre/x", "not /var/log/y"], "a run that has ended reads nothing more"
    assert (len(runs), agent.running["a"].why) == (2, "")
    ticks.cancel()
    await asyncio.wait({ticks})
    await agent.stop()
