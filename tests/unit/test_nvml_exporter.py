"""NVML from the driver's library to the agent's tables, with a stub library, the real binding and a real helper.

No GPU is tested in this file."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import children, failed, lent, stop_all
from nvml_stub import XID, Node

from agent.hardware.inventory import Hardware
from agent.hardware.ledger import CheckState, HealthLedger
from agent.helper.client import MAX_BACK_OFF_SECONDS, Helpers
from agent.sdk.exporter import NoData, StateSection
from agent.sdk.hardware import NODE, Subject
from agent.sdk.helper import HelperFailed
from exporters.nvml import exporter as exporter_module, library
from exporters.nvml.calls import NvmlCalls
from exporters.nvml.exporter import (
    ABSENT_SECONDS,
    INTERVAL_SECONDS,
    REOPEN_SECONDS,
    NvmlConfig,
    NvmlExporter,
    NvmlFailed,
)
from exporters.nvml.families import NvmlSnapshot, render
from exporters.nvml.reading import XidEvent

UUID = "GPU-5b1b0d04-7c1e-4d5e-9f3e-0a6d1c2b3e4{}"
SHORT_SECONDS = 0.5


class Bench:
    """The exporter on the stub's node, before its first look."""

    def __init__(self, directory: Path, node: Node, restored: bytes | None = None, **config: Any) -> None:
        self.node = node
        self.clock = FakeClock()
        self.helpers = Helpers(self.clock)
        self.ledger = HealthLedger(self.clock)
        self.hardware = Hardware()
        self.state = StateSection("nvml", restored)
        library = str(directory / "libnvidia-ml.so.1")
        self.exporter = NvmlExporter(NvmlConfig(library=library, **config))
        self.context = lent(
            "nvml",
            self.clock,
            directory,
            state=self.state,
            helper=self.helpers.lend,
            checks=self.ledger.of("nvml"),
            hardware=self.hardware,
        )

    async def change(self, values: Mapping[str, object]) -> None:
        await asyncio.to_thread(self.node.update, values)

    async def send(self, gpu: int, kind: int, data: int, times: int = 1) -> None:
        await asyncio.to_thread(self.node.events, [(gpu, kind, data)] * times)

    async def look(self, after_seconds: float = INTERVAL_SECONDS) -> NvmlSnapshot:
        self.clock.advance(after_seconds)
        await self.exporter.update()
        return self.exporter.snapshot()

    def series(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return the series ``name`` with ``labels``, keyed by the values of the other labels except gpu_uuid."""
        return {
            tuple(
                value for key, value in sample.labels.items() if key not in labels and key not in {"gpu_uuid", "uuid"}
            ): sample.value
            for sample in samples(render(self.exporter.snapshot()))
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, **labels: str) -> float | None:
        matches = list(self.series(name, **labels).values())
        assert len(matches) <= 1
        return matches[0] if matches else None

    def failed(self) -> set[tuple[str, str]]:
        """Return the failed checks in the ledger: (last character of the subject's name, check)."""
        return {
            (entry.subject.name[-1:], entry.check)
            for entry in self.ledger.entries()
            if entry.finding.state is CheckState.FAILED
        }


Start = Callable[..., "contextlib.AbstractAsyncContextManager[Bench]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Provide a function that starts an exporter on a healthy node, or on none, and looks."""

    @contextlib.asynccontextmanager
    async def started(
        values: dict[str, object] | None = None,
        *,
        absent: bool = False,
        restored: bytes | None = None,
        looks: int = 1,
        **config: Any,
    ) -> AsyncIterator[Bench]:
        node = await asyncio.to_thread(Node, tmp_path)
        await asyncio.to_thread(node.update, values or {})
        bench = Bench(tmp_path / ("absent" if absent else ""), node, restored, **config)
        await bench.exporter.start(bench.context)
        try:
            for _ in range(looks):
                await bench.look()
            yield bench
        finally:
            await bench.exporter.drain()
            await stop_all(bench.helpers)
        assert not await asyncio.to_thread(children)

    return started


@pytest.mark.slow
async def test_each_field_stands_for_itself(start: Start) -> None:
    """An unsupported or failed field loses only itself, and failures are counted."""
    changes = {"gpu*.clocks_event_reasons": 0x4, "gpu*.fabric_health": 0x51A9}
    async with start(changes, looks=2) as bench:
        counts = {item.family.name: len(item.labels) for item in render(bench.exporter.snapshot())}
        lines = [line for line in bench.node.keys if line.startswith("gpu*.") and "event" not in line]
        fields_with_series = 0
        for line in lines:
            await bench.change({line.replace("*", "3"): "!3"})
            await bench.look()
            now = {item.family.name: len(item.labels) for item in render(bench.exporter.snapshot())}
            assert bench.value("rankwatch_gpu_present", gpu="3") == 1.0
            lost = sum(counts.values()) - sum(now.values())
            assert 0 <= lost <= 9, line
            fields_with_series += lost > 0
            await bench.change({line.replace("*", "3"): None})
        assert fields_with_series == 26  # only checks read the other fields
        await bench.look()
        assert bench.series("rankwatch_gpu_read_errors_total") == {}
        await bench.change({"gpu3.power_usage": "!999", "gpu3.field82.0": "!17"})
        await bench.look()
        assert bench.series("rankwatch_gpu_read_errors_total") == {("unknown",): 1.0, ("operating_system",): 1.0}
        assert bench.value("rankwatch_gpu_power_watts", gpu="3") is None
        assert bench.value("rankwatch_gpu_temperature_celsius", gpu="3", part="memory") is None
        assert bench.value("rankwatch_gpu_power_watts", gpu="4") == 612.345


async def test_faults_of_the_driver_reach_the_ledger(start: Start) -> None:
    """A fault level of the driver fails the GPU's check until the driver clears it."""
    lines = {
        "gpu0.field4.0": 1,
        "gpu1.remapped.3": 1,
        "gpu2.remapped.2": 1,
        "gpu3.field230.0": 2,
        "gpu4.fabric_state": 2,
    }
    checks = ("ecc_uncorrectable", "row_remap_failed", "row_remap_pending", "recovery_action", "fabric")
    async with start(lines) as bench:
        assert bench.failed() == {(str(gpu), f"gpu_{check}") for gpu, check in enumerate(checks)}
        await bench.change(dict.fromkeys(lines))
        await bench.look()
        assert bench.failed() == set()


async def test_an_xid_stands_until_a_reset_is_seen(start: Start) -> None:
    """An Xid fault stays without new Xids; a reset clears it, unless another fault of the GPU remains."""
    async with start() as bench:
        await bench.send(1, XID, 119)
        await bench.look()
        for _ in range(3):
            await bench.look()
        assert bench.failed() == {("1", "gpu_xid")}
        await bench.change({"gpu1.field83.0": 1000})
        await bench.look()
        assert bench.failed() == set()
        await bench.send(1, XID, 46)
        await bench.send(2, XID, 46)
        action = f"gpu2.field{pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION}.0"
        await bench.change({"gpu1.field83.0": 500, "gpu2.field83.0": 1000, action: 1})
        await bench.look()
        assert bench.failed() == {("2", "gpu_xid"), ("2", "gpu_recovery_action")}
        assert bench.series("rankwatch_gpu_xid_errors_total", gpu="1") == {("119",): 1.0, ("46",): 1.0}


async def test_a_reset_ends_checks_without_values(start: Start) -> None:
    """A reset ends a check whose value it leaves unknown: an idle GPU's PCIe link, the fabric of a GPU with MIG."""
    async with start({"gpu1.pcie_width": 8, "gpu2.fabric_state": 2}, looks=16) as bench:
        assert bench.failed() == {("1", "pcie_degraded"), ("2", "gpu_fabric")}
        await bench.change({"gpu1.pcie_width": None, "gpu1.utilization.0": 0, "gpu1.field83.0": 1000})
        await bench.change({"gpu2.fabric_state": 0, "gpu2.field83.0": 1000})
        await bench.look()
        assert bench.failed() == set()


async def test_a_gpu_that_may_not_be_looked_at_is_not_lost(start: Start) -> None:
    """A GPU for which the agent lacks permission counts as a read error, and is not lost."""
    async with start({"gpu5.handle": "!4", "gpu6.handle": "!18"}) as bench:
        assert len(bench.series("rankwatch_gpu_present")) == 7
        assert bench.failed() == {("6", "gpu_lost")}  # the failure to get an interrupt is the GPU's fault
        assert bench.value("rankwatch_gpu_read_errors_total", error="no_permission") == 1.0


async def test_a_gpu_falls_off_the_bus_and_comes_back(start: Start) -> None:
    """A GPU off the bus is lost with its Xid; NVML is initialised again at intervals until the GPU is back."""
    async with start() as bench:
        await bench.send(5, XID, 79)
        await bench.change({"gpu5.utilization.0": "!15", "gpu5.handle": "!15"})
        await bench.look()
        assert bench.value("rankwatch_gpu_present", gpu="5") == 0.0
        assert bench.value("rankwatch_gpu_power_watts", gpu="5") is None
        assert bench.value("rankwatch_gpu_xid_errors_total", gpu="5") == 1.0
        assert bench.failed() == {("5", "gpu_lost"), ("5", "gpu_xid")}
        assert len(bench.hardware.gpus()) == 8
        assert [bench.hardware.is_unseen(UUID.format(gpu)) for gpu in (4, 5)] == [False, True]  # its processes keep it
        await bench.look()  # after NVML starts again, even the handle cannot be read
        assert bench.series("rankwatch_gpu_present", gpu="5") == {("5",)[1:]: 0.0}
        await bench.send(6, XID, 13)
        await bench.change({"gpu5.utilization.0": None, "gpu5.handle": None})
        await bench.look()
        assert bench.value("rankwatch_gpu_present", gpu="5") == 0.0  # NVML has not been initialised again yet
        await bench.send(6, XID, 13)
        bench.clock.advance(REOPEN_SECONDS)
        await bench.look()
        assert bench.value("rankwatch_gpu_present", gpu="5") == 1.0
        assert bench.failed() == set()
        assert bench.value("rankwatch_gpu_xid_errors_total", gpu="6") == 2.0


async def test_lost_gpus_are_missed_by_the_next_agent(start: Start) -> None:
    """The checkpoint has the known GPUs and the links that were up, so that the next agent misses them."""
    async with start() as bench:
        restored = bench.state.published
    async with start({"count": 7, "gpu2.link_state.4": 0}, restored=restored) as bench:
        assert bench.failed() == {("7", "gpu_lost"), ("2", "nvlink_down")}
        assert bench.value("rankwatch_nvlink_links_up", gpu="2") == 17.0
    async with start(restored=b"\xc1nonsense") as bench:
        assert bench.failed() == set()


async def test_the_driver_is_loaded_again(start: Start) -> None:
    """While the driver is unloaded, no GPU is shown or lost; after a reload all series return, and new Xids count."""
    async with start() as bench:
        for error in ("!18", "!9"):
            await bench.change({"generation": 2, "init": error})
            await bench.look()
            assert bench.series("rankwatch_gpu_present") == bench.series("rankwatch_gpu_driver_info") == {}
            assert bench.failed() == set()
        await bench.change({"init": None, "gpu*.field83.0": 5})
        await bench.look()
        assert len(bench.series("rankwatch_gpu_power_watts")) == 8
        await bench.send(0, XID, 48)
        await bench.look()
        assert bench.failed() == {("0", "gpu_xid")}


async def test_no_driver(start: Start) -> None:
    """Without library, driver or GPU there is no data; a driver that fails before any GPU was seen is an error."""
    async with start(absent=True, looks=0) as bench:
        with pytest.raises(NoData):
            await bench.look()
    for values, error in (({"init": "!9"}, NoData), ({"count": 0}, NoData), ({"init": "!18"}, NvmlFailed)):
        async with start(values, looks=0) as bench:
            with pytest.raises(error):
                await bench.look()


async def test_a_node_without_a_driver_is_looked_at_seldom(start: Start) -> None:
    """Without a driver NVML is called every ABSENT_SECONDS and no helper is kept; a driver loaded later is found."""
    async with start({"init": "!9"}, looks=0) as bench:
        for after, calls in ((INTERVAL_SECONDS, 1), (ABSENT_SECONDS - 1.0, 1), (1.0, 2)):
            with pytest.raises(NoData):
                await bench.look(after)
            assert bench.exporter._helper.calls["ok"] == calls
        await bench.change({"init": 0})
        await bench.look(ABSENT_SECONDS)
        assert len(bench.series("rankwatch_gpu_present")) == 8


@pytest.mark.slow
async def test_the_driver_hangs_and_recovers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the driver hangs, GPU series are absent and the node's check fails; afterwards all return."""
    monkeypatch.setattr(exporter_module, "START_FACTOR", 40.0)
    async with start(hang_seconds=SHORT_SECONDS) as bench:
        monkeypatch.setattr(exporter_module, "START_FACTOR", 1.0)
        await bench.change({"hang": "power_usage"})
        for _ in range(4):  # the last look falls into the helper's back-off
            await bench.look(after_seconds=0.0)
            assert list(samples(render(bench.exporter.snapshot()))) == []
            assert [(item.subject, item.check) for item in failed(bench.ledger)] == [(NODE, "gpu_driver_hung")]
            assert len(await asyncio.to_thread(children)) <= 1
        assert bench.helpers.all()[0].calls == {"ok": 1, "hung": 2, "failed": 2}
        assert len(bench.hardware.gpus_of(4713)) == 1  # ranks keep their GPUs
        monkeypatch.setattr(exporter_module, "START_FACTOR", 40.0)
        await bench.change({"hang": None})
        bench.clock.advance(MAX_BACK_OFF_SECONDS)
        await bench.look()
        assert (bench.failed(), len(bench.series("rankwatch_gpu_present"))) == (set(), 8)
        assert bench.ledger.entries()[0].subject == Subject("gpu", UUID.format(0))


async def test_a_helper_that_crashes_is_an_error(start: Start) -> None:
    """If the helper crashes, the check for a hung driver does not fail; the next update starts a new helper."""
    async with start() as bench:
        for child in await asyncio.to_thread(children):
            os.kill(int(child), 9)
        with contextlib.suppress(HelperFailed):
            await bench.look()
        assert bench.failed() == set()
        await bench.look()
        assert len(bench.series("rankwatch_gpu_present")) == 8


async def test_mig(start: Start) -> None:
    """The processes of a GPU's MIG instances count as processes of the GPU, but the GPU does not count as shared."""
    async with start(
        {
            "gpu5.mig": 1,
            "gpu5.processes": "!3",
            "gpu5.mig0_uuid": "MIG-a",
            "gpu5.mig2_uuid": "MIG-b",
            "gpu5.mig0_processes": "4801 4802",
            "gpu5.mig2_processes": "4802",
            "gpu5.utilization.0": "!3",
        }
    ) as bench:
        assert bench.value("rankwatch_gpu_processes", gpu="5") == 2.0
        assert [item.index for item in bench.hardware.gpus_of(4802)] == [5]
        assert 4802 not in bench.hardware.gpu_users()  # instances are not shared
        assert bench.hardware.gpu_users()[4713] == {UUID.format(2)}
        assert bench.value("rankwatch_gpu_utilization_ratio", gpu="5") is None
        assert bench.failed() == set()


async def test_links_go_down_and_make_errors(start: Start) -> None:
    """A link that was up fails a check when down; a link that was never up does not; repeated errors fail a check."""
    async with start({"gpu0.link_state.17": 0}) as bench:
        assert (bench.failed(), bench.value("rankwatch_nvlink_links_up", gpu="0")) == (set(), 17.0)
        await bench.change({"gpu0.link_state.3": 0})
        for count in range(16):
            await bench.change({"gpu1.field162.9": count + 1})
            await bench.look()
        assert bench.value("rankwatch_nvlink_links_up", gpu="0") == 16.0
        assert bench.series("rankwatch_nvlink_flagged_ratio") == {("1", "9"): 16 / 30}
        assert bench.value("rankwatch_nvlink_errors_total", gpu="1", kind="recovery") == 16.0
        assert bench.failed() == {("0", "nvlink_down"), ("1", "nvlink_errors")}
        await bench.change({"gpu0.link_state.3": None})
        await bench.look()
        assert ("0", "nvlink_down") not in bench.failed()


@pytest.mark.parametrize(("driver", "counters", "errors"), [
    ("590.48.01", {"field208": 1, "field215": 2, "field295": 3}, {"receive": 1, "recovery": 2, "phy_retry": 3}),
    ("570.86.10", {"field208": 1, "field215": 2, "field295": 3}, {"receive": 1, "recovery": 2}),
    ("535.1.1", {"field161": 4, "field162": 5, "field163": 6}, {"replay": 4, "recovery": 5, "crc": 6}),
    ("535.1.1", {"field46": 7, "field108": 8}, {"replay": 15 / 14}),  # one field for each of the first links
])  # fmt: skip
async def test_where_link_errors_are_counted(
    start: Start, driver: str, counters: dict[str, int], errors: dict[str, float]
) -> None:
    """Each kind of link error comes from its first existing counter; renumbered fields are not read."""
    none = {f"gpu*.field{number}.*": None for number in (161, 162, 163)}
    values = {f"gpu*.{name}.*": value for name, value in counters.items()}
    async with start({**none, **values, "driver": driver, "gpu*.field91.0": 14}, looks=2) as bench:
        shown = bench.series("rankwatch_nvlink_errors_total", gpu="1")
        assert shown == {(kind,): 14.0 * count for kind, count in errors.items()}


@pytest.mark.parametrize(("driver", "seconds"), [("590.48.01", 7.5), ("580.95.05", 0.0)])
async def test_throttle_counters_of_renumbered_fields(start: Start, driver: str, seconds: float) -> None:
    """Throttle counters are read if their field numbers are certain; otherwise the agent estimates the time."""
    async with start({"driver": driver, "gpu0.field270.0": 7_500_000_000, "gpu1.clocks_event_reasons": 0x40}) as bench:
        await bench.look()
        shown = bench.series("rankwatch_gpu_clocks_event_seconds_total", reason="hw_thermal_slowdown")
        assert shown[("0",)] == seconds
        assert shown[("1",)] == (0.0 if seconds else INTERVAL_SECONDS)


# -- activity ----------------------------------------------------------------------------------------------------------

ACTIVITY = "rankwatch_gpu_active_ratio"
LOST = "!15"


def active(bench: Bench) -> set[str]:
    """Return the GPUs with activity metrics."""
    return {gpu for (gpu,) in bench.series(ACTIVITY, unit="sm")}


async def test_a_gpu_without_activity(start: Start) -> None:
    """A GPU without activity counters, or with MIG, has no activity series, which is no error."""
    changes = {"gpu1.gpm_support": 0, "gpu2.gpm_support": None, "gpu*.gpm_support": "!13", "gpu3.mig": 1}
    supporting = {f"gpu{gpu}.gpm_support": 1 for gpu in (0, 3, 4, 5, 6, 7)}
    async with start({**changes, **supporting}, looks=3) as bench:
        assert active(bench) == {"0", "4", "5", "6", "7"}
        await bench.change({"gpu4.mig": 1, "gpu3.mig": 0})
        await bench.look()
        assert active(bench) == {"0", "5", "6", "7"}
        await bench.look()
        assert active(bench) == {"0", "3", "5", "6", "7"}
        await bench.change({"gpu4.mig": 0})
        await bench.look()  # no mean over the time with MIG
        assert active(bench) == {"0", "3", "5", "6", "7"}
        assert bench.series("rankwatch_gpu_read_errors_total") == {}


async def test_samples_are_given_back(start: Start) -> None:
    """At most two activity samples per GPU are held, whatever happens to GPUs and driver."""
    async with start({"gpm_samples": 16}, looks=0) as bench:
        for generation in range(3):
            for _ in range(2):
                await bench.look()
            assert len(active(bench)) == 8
            await bench.change({"gpu5.utilization.0": LOST})
            await bench.look()
            assert active(bench) == {*"0123467"}
            await bench.change({"gpu5.utilization.0": None})
            await bench.look(REOPEN_SECONDS)
            assert active(bench) == set()
            for _ in range(2):
                await bench.look()
            assert len(active(bench)) == 8
            await bench.change({"generation": generation + 2})
        assert bench.value("rankwatch_gpu_read_errors_total", error="memory") is None


@pytest.fixture
def storm(monkeypatch: pytest.MonkeyPatch) -> library.NvmlLibrary:
    """Provide NVML with a driver that always has another Xid 31 of an unknown GPU."""
    event = SimpleNamespace(device=None, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=31)
    monkeypatch.setattr(pynvml, "nvmlEventSetWait", lambda *_: event)
    monkeypatch.setattr(library, "_address", lambda _: 0)
    nvml = library.NvmlLibrary()
    nvml._events = object()
    return nvml


@pytest.mark.parametrize(
    ("name", "value", "events"), [("MAX_EVENTS", 7, [XidEvent("", 31, 7)]), ("DRAIN_SECONDS", -1.0, [])]
)
def test_a_storm_is_bounded(
    storm: library.NvmlLibrary, monkeypatch: pytest.MonkeyPatch, name: str, value: float, events: list[XidEvent]
) -> None:
    """At most MAX_EVENTS events are read, for at most DRAIN_SECONDS; equal events become one event with their count."""
    monkeypatch.setattr(library, name, value)
    assert storm._drain(NvmlCalls()) == events
