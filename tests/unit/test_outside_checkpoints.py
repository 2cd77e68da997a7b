"""Damaged checkpoint sections of every owner except Inspector (test_inspector_bounds.py)."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from signal import SIGSEGV
from typing import Any, NamedTuple

import msgspec
import pytest
from fake_clock import FakeClock
from hypothesis import given, settings, strategies as st
from lent import lent
from odd_values import AtOnce, changed, plain, reshaped, shown
from rank_table import WORLD, RankTable, environment, facts, writer_key

from agent.app.front import node_document
from agent.core.identity import Membership
from agent.core.log import Logger
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import CheckState, HealthLedger
from agent.page.front_page import SiteLinks, front_page
from agent.page.ranks_json import Configuration, read, write
from agent.ranks import families as rank_families, health, liveness_families
from agent.ranks.health import HealthSnapshot
from agent.ranks.rank.evidence import RasSilence
from agent.ranks.rank.exit_status import ExitStatus
from agent.sdk.exporter import Exporter, StateSection
from agent.sdk.hardware import Gpu, Subject
from exporters.amdgpu.baseline import Known
from exporters.amdgpu.exporter import AmdgpuConfig, AmdgpuExporter
from exporters.kernel_log import KernelLogConfig, KernelLogExporter
from exporters.kernel_log.exporter import Past
from exporters.nvml.exporter import NvmlConfig, NvmlExporter
from exporters.nvml.gpus import Remembered
from exporters.nvml.reading import GpuReading, Link, LookAnswer, XidEvent
from exporters.rdma.baseline import Baseline
from exporters.rdma.exporter import RdmaConfig, RdmaExporter

DATA = Path(__file__).parents[1] / "data"


class Driver:
    """Stands in for NVML's helper."""

    async def call(self, *_: object) -> LookAnswer:
        """Return two GPUs, one of them with an Xid and a memory error."""
        values = {"energy_millijoules": 9, "recovery_action": 0, "pcie_replays": 1}
        gpus = tuple(
            GpuReading(index, f"GPU-{index}", "H100", f"0000:0{index}:00.0", values=values, links=(Link(0, up=True),))
            for index in range(2)
        )
        events = (XidEvent("GPU-0", 79),)
        return LookAnswer(gpus=gpus, events=events)

    def rest(self) -> None:
        """Do nothing, because there is no process."""


class Owner(NamedTuple):
    """A function that builds an exporter, and the type of the exporter's checkpoint section."""

    build: Callable[[], Exporter]
    saves: Any


OWNERS = {
    "nvml": Owner(lambda: NvmlExporter(NvmlConfig()), dict[str, Remembered]),
    "amdgpu": Owner(lambda: AmdgpuExporter(AmdgpuConfig()), dict[str, Known]),
    "rdma": Owner(lambda: RdmaExporter(RdmaConfig()), Baseline),
    "kernel_log": Owner(lambda: KernelLogExporter(KernelLogConfig(path=str(DATA / "kernel_log/kmsg"))), Past),
}


def run(name: str, restored: bytes | None) -> bytes:
    """Run an exporter with this section for two looks; return its next section."""
    section = StateSection(name, restored)
    clock, ranks = FakeClock(), RankTable(FakeClock(), "here", settle_at_once=True)
    clock.now = 7040.0
    ranks.observe_process(facts(4711, environment(3)))
    ranks.tick()
    ledger = HealthLedger(clock)
    context = lent(
        name, clock, DATA / name, state=section, ranks=ranks, thread=AtOnce, helper=lambda _: Driver(),
        checks=ledger.of(name),
    )  # fmt: skip
    exporter = OWNERS[name].build()

    async def live() -> None:
        await exporter.start(context)
        for _ in range(2):
            await exporter.update()
            clock.advance(15.0)
            shown(exporter.families(exporter.snapshot()))
        await exporter.drain()

    asyncio.run(live())
    HealthLedger(clock).load(ledger.dump())
    assert not context.failures.skipped
    assert StateSection(name, section.published).restore(OWNERS[name].saves, Logger(name)) is not None
    assert section.published is not None
    return section.published


@cache
def saved(name: str) -> Any:
    """Return the section of an exporter that has run, as plain values."""
    section = plain(run(name, run(name, None)))
    if name == "kernel_log":
        section["last"] = 1964  # in the middle of the log, so that later records are new
    return section


@pytest.mark.slow
@pytest.mark.parametrize("name", OWNERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_damage_of_a_section_lasts(name: str, data: st.DataObject) -> None:
    """After any damage of a section, looks succeed, and the section that they save can be restored."""
    section = msgspec.msgpack.encode(data.draw(reshaped(saved(name))))
    run(name, run(name, section))


def table(section: bytes | None = None) -> RankTable:
    """Return a rank table with every kind of entry, or the table of a checkpoint."""
    clock = FakeClock()
    ranks = RankTable(clock, "here")
    if section is not None:
        ranks.load(section)
        return ranks
    for pid in range(1, 4):
        ranks.observe_process(facts(pid, environment(pid)))
    ranks.observe_records(writer_key(2), [Membership(WORLD, 2, 8, "world", 2)], clock.time())
    ranks.observe_records(writer_key(9), [Membership(WORLD, 5, 8, "world", 2)], clock.time())
    ranks.link(writer_key(2), facts(2).key)
    ranks.tick()
    ranks.observe_silences({facts(3).key: RasSilence(clock.monotonic(), clock.time(), 3)})
    ranks.observe_exit(facts(1).key, ExitStatus(known=True, signal=SIGSEGV))
    hardware = Hardware()
    hardware.of("nvml").observe_gpus([Gpu(0, "GPU-a", "0000:3b:00.0")])
    hardware.of("nvml").observe_gpu_processes({2: ["GPU-a"]}, set())
    ranks.observe_gpus(hardware)
    ranks.judge_changed()
    return ranks


def live_on(ranks: RankTable) -> bytes:
    """Add new facts to a restored table, render its pages, and return its next checkpoint section."""
    ranks.observe_state(facts(2).key)
    ranks.observe_exit(facts(3).key, None)
    ranks.observe_process(facts(4, environment(4)))
    ranks.observe_records(writer_key(2), [Membership(WORLD, 2, 8, "other", 2)], FakeClock().time())
    ranks.observe_memberships(facts(2).key, [Membership(WORLD, 2, 8, "world", 2)])
    for _ in range(2):
        ranks.tick()
        ranks.judge_changed()
        result = ranks.snapshot()
        shown(rank_families.families(result))
        shown(liveness_families.families(result))
        health = HealthSnapshot(result, (), frozenset())
        state = {"up_seconds": 1.0, "ready": True, "configuration": Configuration()}
        document = node_document(health, ranks.speeds, (), "here", **state)
        front_page(read(write(document)), SiteLinks())
    return ranks.dump()


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(reshaped(plain(table().dump())))
def test_no_damage_of_the_rank_table_lasts(odd: Any) -> None:
    """A damaged table is refused as a whole, or can be updated, judged, shown, saved and restored."""
    try:
        ranks = table(msgspec.msgpack.encode(odd))
    except (ValueError, RecursionError):
        return
    live_on(table(live_on(ranks)))


def ledger(section: bytes | None = None) -> HealthLedger:
    """Return a ledger with latched faults, or the ledger of a checkpoint."""
    result = HealthLedger(FakeClock())
    if section is not None:
        result.load(section)
        return result
    for check in ("gpu_xid", "gpu_lost"):
        result.of("kernel_log").latch(Subject("gpu", "0000:3b:00.0"), check)
    return result


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(reshaped(plain(ledger().dump())))
def test_no_damage_of_the_ledger_lasts(odd: Any) -> None:
    """A damaged ledger is refused as a whole, or can be updated, shown, saved and restored."""
    try:
        result = ledger(msgspec.msgpack.encode(odd))
    except (ValueError, RecursionError):
        return
    checks = result.of("kernel_log")
    checks.rename("gpu", {"0000:3b:00.0": "GPU-a"})
    checks.report(Subject("gpu", "GPU-a"), "gpu_xid", CheckState.OK)
    entries = result.entries()
    shown(health.families(health.HealthSnapshot(table().snapshot(), entries, health.counted_checks((), ()))))
    assert ledger(result.dump()).entries() == tuple(entry for entry in entries if entry.finding.latched)


@pytest.mark.parametrize(
    ("name", "path"), [("nvml", ("GPU-0", "xids", "79", "count")), ("kernel_log", ("seen", "gpu_xid", "79", "count"))]
)
def test_a_count_that_nothing_can_be_added_to_is_damage(name: str, path: tuple[str, ...]) -> None:
    """With a count of MAX_COUNT or more in its section, an exporter runs without an error; its next section can be
    restored."""
    for count in (2**64 - 1, 2**62):
        run(name, msgspec.msgpack.encode(changed(saved(name), path, count)))
