"""Reloads with a slow drain."""

import asyncio
from pathlib import Path

import pytest
from fake_clock import FakeClock
from rank_table import environment, facts
from scripted import Idle, Section, plan, supervisor

import agent.app.daemon as daemon_module
from agent.app.config import Options, load
from agent.app.daemon import Daemon
from agent.app.discovery import ExporterPlan, exporter_names
from agent.ranks.writer import RankWriter


class Made(Idle):
    """An exporter that reports all running ranks as seen. The drain of ras returns only after ``hold`` is set."""

    def __init__(self, name: str, hold: asyncio.Event) -> None:
        self.name, self.hold = name, hold

    async def update(self) -> None:
        for key in self.ctx.ranks.snapshot().running:
            self.ctx.ranks.observe_state(key)

    async def drain(self) -> None:
        if self.name == "ras":
            await self.hold.wait()


def plan_of(hold: asyncio.Event, number: int, *names: str) -> ExporterPlan:
    """Return a plan of these exporters."""
    sections = {name: Section(number=number) for name in names}
    return plan(lambda name, _: Made(name, hold), 0.05, 45.0, **sections)


async def test_a_drain_that_waits_for_a_query_hides_no_rank() -> None:
    """While ras finishes a query (45 s at most), a reload that also restarts `process` hides no rank."""
    clock, hold = FakeClock(), asyncio.Event()
    own = supervisor(clock=clock)
    await own.begin(plan_of(hold, 0, "process", "ras"))
    RankWriter(own.ranks, "process").observe_process(facts(10, environment(0)))
    clock.advance(2.0)
    own.ranks.tick()
    assert len(own.ranks.snapshot().ranks) == 1
    reload = asyncio.create_task(own.apply(plan_of(hold, 1, "process", "ras")))
    seen = []
    for _ in range(10):  # 60 ms stand for a second
        await asyncio.sleep(0.06)
        clock.advance(1.0)
        own.ranks.tick()
        seen.append(len(own.ranks.snapshot().ranks))
    hold.set()
    await reload
    await own.stop()
    assert seen == [1] * 10


async def test_a_stop_in_the_middle_of_a_reload_waits_for_its_drains() -> None:
    """If the agent is stopped during a reload, it still waits for the query that ras finishes."""
    own, hold = supervisor(), asyncio.Event()
    await own.begin(plan_of(hold, 0, "ras"))
    reload = asyncio.create_task(own.apply(plan_of(hold, 1, "ras")))
    await asyncio.sleep(0.01)
    reload.cancel()
    stop = asyncio.create_task(own.stop())
    assert not (await asyncio.wait({stop}, timeout=0.05))[0]
    hold.set()
    await stop


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Provide a configuration with every exporter disabled."""
    off = "".join(f"  {name}: {{enabled: false}}\n" for name in exporter_names())
    path = tmp_path / "rankwatch.yml"
    path.write_text(f'web: {{listen_address: "127.0.0.1:0"}}\nstate: {{path: ""}}\nexporters:\n{off}')
    return path


@pytest.fixture
def daemon(file: Path) -> Daemon:
    """Provide an agent with this configuration."""
    options = Options(config_path=file)
    return Daemon(options, load(options), {})


async def test_a_mistake_that_was_taken_back_is_no_alert(
    file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the refused file is changed back to the configuration in use, the reload counts as successful."""
    monkeypatch.setattr(daemon_module, "CONFIG_POLL_SECONDS", 0.02)
    good = daemon._loaded.text
    await daemon._web.start(("127.0.0.1:0",))
    tasks = [asyncio.create_task(daemon._reloads()), asyncio.create_task(daemon._watch_config(file))]

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
