"""Reloads with a drain that is slow."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from rank_table import environment, facts

import agent.app.daemon as daemon_module
from agent.app.config import Options, load
from agent.app.daemon import Daemon
from agent.app.discovery import ExporterPlan, Prepared, exporter_names
from agent.app.supervisor import Supervisor
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.core.metrics import Metric
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Context, ExporterConfig, Roots, Spec


class Config(ExporterConfig, frozen=True, kw_only=True):
    number: int = 0


class Made:
    def __init__(self, name: str, hold: asyncio.Event | None) -> None:
        self.name, self.hold = name, hold
        self.drained = False

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx

    async def update(self) -> None:
        for key in self.ctx.ranks.snapshot().running:
            self.ctx.ranks.observe_state(key)

    def snapshot(self) -> object:
        return None

    def families(self, snapshot: Any) -> Iterable[Metric]:
        return ()

    async def drain(self) -> None:
        self.drained = True
        if self.hold is not None:
            await self.hold.wait()


async def test_a_drain_that_waits_for_a_query_hides_no_rank(tmp_path: Path) -> None:
    """While ras reads a query to its end (45 s at most), a reload that changes process too loses sight of no rank."""
    clock, hold = FakeClock(), asyncio.Event()
    supervisor = Supervisor(clock, "here", Roots(), StateFile(None, "boot", Logger("test")))

    def plan(number: int) -> ExporterPlan:
        def prepared(name: str, event: asyncio.Event | None) -> Prepared:
            return Prepared(Spec(name, Config, lambda _: Made(name, event), 0.05, 1.0, (), 45.0), Config(number=number))

        return ExporterPlan({"process": prepared("process", None), "ras": prepared("ras", hold)}, ())

    await supervisor.begin(plan(0))
    RankWriter(supervisor.ranks, "process").observe_process(facts(10, environment(0)))
    clock.advance(2.0)
    supervisor.ranks.tick()
    assert len(supervisor.ranks.snapshot().ranks) == 1
    reload = asyncio.create_task(supervisor.apply(plan(1)))
    seen = []
    for _ in range(10):  # ten seconds, of which each takes 60 ms here
        await asyncio.sleep(0.06)
        clock.advance(1.0)
        supervisor.ranks.tick()
        seen.append(len(supervisor.ranks.snapshot().ranks))
    hold.set()
    await reload
    await supervisor.stop()
    assert seen == [1] * 10


async def test_a_stop_in_the_middle_of_a_reload_waits_for_its_drains() -> None:
    """A query that RAS reads to its end is read to it also when the agent is stopped while a reload waits for that."""
    hold = asyncio.Event()
    supervisor = Supervisor(FakeClock(), "here", Roots(), StateFile(None, "boot", Logger("test")))
    spec = Spec("ras", Config, lambda _: Made("ras", hold), 60.0, 1.0, (), 45.0)
    await supervisor.begin(ExporterPlan({"ras": Prepared(spec, Config())}, ()))
    reload = asyncio.create_task(supervisor.apply(ExporterPlan({"ras": Prepared(spec, Config(number=1))}, ())))
    await asyncio.sleep(0.01)
    reload.cancel()
    stop = asyncio.create_task(supervisor.stop())
    assert not (await asyncio.wait({stop}, timeout=0.05))[0]
    hold.set()
    await stop


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with every exporter off."""
    off = "".join(f"  {name}: {{enabled: false}}\n" for name in exporter_names())
    path = tmp_path / "rankwatch.yml"
    path.write_text(f'web: {{listen_address: "127.0.0.1:0"}}\nstate: {{path: ""}}\nexporters:\n{off}')
    return path


@pytest.fixture
def daemon(file: Path) -> Daemon:
    """An agent with it."""
    options = Options(config_path=file)
    return Daemon(options, load(options), {})


async def test_a_mistake_that_was_taken_back_is_no_alert(
    file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that holds again what is in use counts as a successful reload: the alert on the mistake ends."""
    monkeypatch.setattr(daemon_module, "CONFIG_POLL_SECONDS", 0.02)
    good = daemon._loaded.text
    await daemon._web.start(("127.0.0.1:0",))
    tasks = [asyncio.create_task(daemon._reloads()), asyncio.create_task(daemon._watch_config())]

    async def until(*, ok: bool) -> bool:
        for _ in range(100):
            if (not daemon._refused) is ok:
                return True
            await asyncio.sleep(0.02)
        return False

    try:
        await asyncio.to_thread(file.write_text, "nonsense: 1\n")
        assert await until(ok=False)
        await asyncio.to_thread(file.write_text, good)
        assert await until(ok=True)
    finally:
        for task in tasks:
            task.cancel()
        await daemon._web.stop()
