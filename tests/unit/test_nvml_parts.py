"""NVML, the pure parts: plausible numbers, clocks, windows, fabric masks, links and health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from lent import well

from agent.sdk.hardware import CheckState, fault_table
from exporters.nvml import judge
from exporters.nvml.fields import FIELDS, JUDGED, plausible
from exporters.nvml.gpus import MAX_XIDS, Gpus, GpuVerdict, GpuView, Remembered
from exporters.nvml.judge import (
    FLAGGED_LOOKS,
    MAX_ELAPSED_SECONDS,
    REASONS,
    NvLinks,
    ReasonSeconds,
    active_reasons,
    is_fabric_healthy,
    is_shown,
)
from exporters.nvml.reading import MAX_GPUS, Fabric, GpuReading, Link, LookAnswer, XidEvent

HOT = 85.0


def reading(**values: int) -> GpuReading:
    """Return the reading of a GPU with these values."""
    return GpuReading(0, "GPU-a", values=values)


def test_a_number_above_its_greatest_value_is_refused() -> None:
    """The limit of a number is accepted; a higher number, and the driver's value for a missing number, are not."""
    bounds = JUDGED | {name: field.most for name, field in FIELDS.items()}
    for name, most in bounds.items():
        marks = [-1, 2**64 - 1, *([2**32 - 1] if most < 2**32 else [])]
        assert [value for value in (0, most, most + 1, *marks) if plausible({name: value})] == [0, most], name
    assert plausible({"unheard_of": 0, "recovery_action": 100}) == {}


def test_reasons_that_the_gpu_cannot_tell_are_absent() -> None:
    """Only supported reasons for lowered clocks are shown, and none if the driver reports none."""
    now = GpuReading(0, reasons=0x44, supported_reasons=0x4C)
    assert active_reasons(now) == {"sw_power_cap": True, "hw_slowdown": False, "hw_thermal_slowdown": True}
    assert active_reasons(GpuReading(0, supported_reasons=0x4C)) == {}
    assert len(active_reasons(GpuReading(0, reasons=0))) == 8
    chosen = {"applications_clocks_setting", "sync_boost", "display_clock_setting"}
    for seconds, hidden in ((0.0, chosen), (1.0, set())):
        assert {name for name in REASONS.values() if not is_shown(name, seconds)} == hidden


def test_seconds_of_reasons() -> None:
    """A reason keeps the source of its first poll: the driver's count or the polls. The time between two polls that are
    too far apart is added to no reason's seconds."""
    silent = GpuReading(0, reasons=0x40, supported_reasons=0x40)
    counting = msgspec.structs.replace(silent, reason_nanoseconds={"hw_thermal_slowdown": 10**15})
    looks = {10.0: 10.0, MAX_ELAPSED_SECONDS: MAX_ELAPSED_SECONDS, MAX_ELAPSED_SECONDS + 1: 0.0}
    for first, second, known in ((silent, counting, True), (counting, silent, False)):
        for elapsed, counted in looks.items():
            seconds = ReasonSeconds()
            seconds.add(first, 0.0)
            assert seconds.add(second, elapsed) == ({"hw_thermal_slowdown": counted} if known else {})


# -- clocks ------------------------------------------------------------------------------------------------------------


# -- the fabric --------------------------------------------------------------------------------------------------------

WELL = 0x51AA  # No fault, with every field valid
DOMAIN = "0a0b0c0d-0000-4000-8000-000000000001"


def test_fabric_mask() -> None:
    """Each bit pair is a fault unless it recovers by itself; faults of a domain count only for a GPU in a domain."""
    recovers = {0: "no fault", 0xC: "a route", 0xC0: "an access timeout"}
    of_domains = {0x300: "configuration", 0x3000: "no partition", 0xC000: "manager disconnected"}
    for mask in (*recovers, *of_domains, 0x3, 0x30):  # degraded bandwidth, unhealthy route
        healthy = (mask in recovers, mask in recovers or mask in of_domains)
        assert tuple(is_fabric_healthy(Fabric(3, 0, 0, cluster, WELL ^ mask)) for cluster in (DOMAIN, "")) == healthy
    for health in (None, 0, WELL):
        for state, status in ((3, 0), (2, 0), (3, 9)):
            assert is_fabric_healthy(Fabric(state, status, 0, DOMAIN, health)) == ((state, status) == (3, 0))


def test_imex_is_wanted_in_a_domain_alone() -> None:
    """The recovery action for the IMEX domain fails the check on a node in a domain; others fail it on any node."""
    healthy = {(5, ""), (5, None), (0, "")}
    for action, cluster in (*healthy, (5, DOMAIN), (4, ""), (6, ""), (7, None)):
        joined = None if cluster is None else Fabric(3, 0, 0, cluster)
        states = judge.levels(GpuReading(0, values={"recovery_action": action}, fabric=joined))
        assert (states["gpu_recovery_action"] is CheckState.OK) == ((action, cluster) in healthy)


# -- health ------------------------------------------------------------------------------------------------------------


def test_votes() -> None:
    """A reading that can be temporary is a vote for or against a fault; an idle GPU's slower link gives no vote."""
    cases: list[Any] = [
        ({}, {}),
        ({"temperature_celsius": 84}, {"gpu_hot": False}),
        ({"temperature_celsius": 85}, {"gpu_hot": True}),
        ({"pcie_width": 8, "pcie_max_width": 16}, {"pcie_degraded": True}),
        ({"pcie_width": 16, "pcie_max_width": 16}, {}),
        ({"pcie_generation": 1, "pcie_max_generation": 5, "gpu_utilization_percent": 9}, {}),
        ({"pcie_generation": 4, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": True}),
        ({"pcie_generation": 5, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": False}),
    ]
    for values, votes in cases:
        assert judge.votes(reading(**values), None, 0.0, HOT) == votes
    for bits, slow in ((0, False), (0x4 | 0x20, False), (0x8, True), (0x40, True), (0x80, True)):
        assert judge.votes(GpuReading(0, reasons=bits), None, 0.0, HOT) == {"gpu_slowdown": slow}


def test_replays_per_minute() -> None:
    """More than 50 PCIe replays a minute are too many; a counter that fell has restarted."""
    cases: list[Any] = [(8, False), (9, True), (-5, False)]
    for replays, bad in cases:
        now, before = reading(pcie_replays=100 + replays), reading(pcie_replays=100)
        assert judge.votes(now, before, 10.0, HOT) == {"pcie_errors": bad}
        assert judge.votes(now, before, 0.0, HOT) == judge.votes(now, None, 10.0, HOT) == {}


def test_a_reset_shows() -> None:
    """A counter that restarted, or a pending reset that is done, shows a reset; a missing reading does not."""
    cases: list[Any] = [
        ({}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 5}, {}, False),
        ({"energy_millijoules": 5}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 6}, {"energy_millijoules": 5}, True),
        ({"ecc_uncorrected_volatile": 1}, {"ecc_uncorrected_volatile": 0}, True),
        ({"recovery_action": 1}, {"recovery_action": 0}, True),
        ({"recovery_action": 0}, {"recovery_action": 1}, False),
        ({"recovery_action": 1}, {"recovery_action": 2}, False),
        ({"recovery_action": 3}, {"recovery_action": 0}, False),  # the peer-to-peer traffic was drained
        ({"recovery_action": 5}, {"recovery_action": 0}, False),  # the IMEX domain was recovered
        ({"recovery_action": 1}, {}, False),
    ]
    for before, now, reset in cases:
        assert judge.was_reset(reading(**now), before) == reset


# -- links -------------------------------------------------------------------------------------------------------------


def link(up: bool | None = True, number: int = 0, **errors: int) -> Link:
    """Return a link with these errors."""
    return Link(number, up, errors)


def test_flagged_links() -> None:
    """A link is flagged at a look if an error counter has risen; 15 flags in 30 looks pass the check, 16 fail it."""
    nvlinks = NvLinks()
    for count in range(FLAGGED_LOOKS + 1):
        view = nvlinks.look([link(replay=5, recovery=count), link(number=1, replay=5)])
    assert view.flagged == {0: 0.5, 1: 0.0}
    assert well(nvlinks.checks(view)) == {"nvlink_down": True, "nvlink_errors": True}
    view = nvlinks.look([link(recovery=99), link(number=1, replay=0, crc=7)])
    assert (view.flagged[1], well(nvlinks.checks(view))) == (0.0, {"nvlink_down": True, "nvlink_errors": False})
    nvlinks.forget_windows()
    view = nvlinks.look([link(recovery=0)])
    assert (view.flagged, well(nvlinks.checks(view))) == ({}, {"nvlink_down": True})


def test_errors_of_all_links_never_fall() -> None:
    """The sum of link errors grows by each link's increase, even after a counter's restart; huge counts are dropped."""
    nvlinks = NvLinks()
    looks: list[dict[str, int]] = [{"crc": 5}, {}, {"crc": 6}, {"crc": 2, "replay": 1}]
    seen = [nvlinks.look([link(number=0, **errors), link(number=1, crc=100)]).errors for errors in looks]
    nvlinks.forget_windows()
    assert seen == [{"crc": 105}, {"crc": 105}, {"crc": 106}, {"crc": 108, "replay": 1}]
    assert nvlinks.look([link(crc=0)]).errors == {"crc": 108, "replay": 1}
    assert NvLinks().look([link(replay=2**62 + 1, crc=2**62, other=1, recovery=-1)]).errors == {"crc": 2**62}


NOW, STEP_SECONDS = 1_700_000_000.0, 10.0


def gpu(index: int, **values: int) -> GpuReading:
    """Return a GPU with the UUID GPU-index."""
    return GpuReading(index, f"GPU-{index}", "H100", f"00000000:0{index}:00.0", values=values)


def xid(index: int, *codes: int) -> tuple[XidEvent, ...]:
    """Return Xid events of a GPU."""
    return tuple(XidEvent(f"GPU-{index}", code) for code in codes)


class Bench:
    """GPUs with a look every ten seconds."""

    def __init__(self, remembered: dict[str, Remembered] | None = None) -> None:
        self.gpus = Gpus(85.0, remembered or {})
        self.verdicts: dict[str, GpuVerdict] = {}
        self.now = NOW

    def look(self, *readings: GpuReading, events: Iterable[XidEvent] = (), error: str = "") -> None:
        answer = LookAnswer(error, gpus=readings, events=tuple(events))
        self.now += STEP_SECONDS
        self.verdicts = {entry.subject: entry for entry in self.gpus.observe(answer, STEP_SECONDS, self.now)}

    def view(self, index: int) -> GpuView:
        (states,) = [view for view in self.gpus.views if view.index == index]
        return states

    def restarted(self) -> Bench:
        saved = msgspec.msgpack.encode(self.gpus.remembered)
        return Bench(msgspec.msgpack.decode(saved, type=dict[str, Remembered]))

    def lost(self) -> list[str]:
        return [name for name, verdict in self.verdicts.items() if verdict.levels.get("gpu_lost") is CheckState.FAILED]


def test_a_reset_while_the_agent_was_down() -> None:
    """The last look is saved, and lower counters after a restart show a reset."""
    bench = Bench()
    bench.look(gpu(0, energy_millijoules=100))
    bench.look(gpu(0, energy_millijoules=900))
    bench.gpus.keep_signs()
    again = bench.restarted()
    again.look(gpu(0, energy_millijoules=500))
    assert {"gpu_xid", "gpu_xid_warning", "gpu_lost"} < {*again.verdicts["GPU-0"].recovered}
    again.look(gpu(0, energy_millijoules=600))
    assert again.verdicts["GPU-0"].recovered == ()
    assert again.gpus.remembered["GPU-0"].signs == {"energy_millijoules": 500}


def test_a_gpu_that_does_not_tell_its_name_is_not_lost() -> None:
    """A known GPU whose UUID, address or name cannot be read once keeps it, and its faults are not cleared."""
    bench = Bench()
    bench.look(gpu(0))
    for changes in ({"uuid": ""}, {"pci": ""}, {"name": ""}):
        bench.look(msgspec.structs.replace(gpu(0), **changes))
        assert (bench.lost(), bench.verdicts["GPU-0"].recovered) == ([], ())
        assert (bench.view(0).pci, bench.view(0).name) == (gpu(0).pci, "H100")


def test_what_the_xids_of_a_gpu_mean() -> None:
    """Each Xid has its meaning, keyed by the GPU's address, until it is too old."""
    bench = Bench()
    bench.look(gpu(0), gpu(1), events=(*xid(0, 79, 0), *xid(1, 94)))
    meanings = {pci: [entry.fault.meaning for entry in seen] for pci, seen in bench.gpus.faults(bench.now).items()}
    assert meanings == {"0000:00:00.0": ["GPU has fallen off the bus"], "0000:01:00.0": ["contained memory error"]}
    assert bench.gpus.faults(bench.now + fault_table.MAX_AGE_SECONDS + 1) == {"0000:00:00.0": [], "0000:01:00.0": []}


def test_xids_of_a_gpu_that_is_lost_or_while_nvml_fails() -> None:
    """Xids of a lost GPU, and Xids while NVML fails, are counted."""
    bench = Bench()
    bench.look(gpu(0), gpu(1))
    bench.look(gpu(1), events=xid(0, 79))
    assert bench.verdicts["GPU-0"].faults == ("gpu_xid",)
    assert bench.view(0).xids["79"] == 1
    bench.look(error="driver_not_loaded", events=xid(1, 119))
    assert bench.verdicts["GPU-1"] == GpuVerdict("GPU-1", {}, ("gpu_xid",))
    assert bench.gpus.views == ()
    bench.look(gpu(0), gpu(1))
    assert bench.view(1).xids["119"] == 1


def test_xid_series_are_bounded() -> None:
    """Above 32 different Xids, and for invalid numbers, the code is `other`."""
    bench = Bench()
    bench.look(gpu(0), events=xid(0, *range(1, MAX_XIDS + 1), 500, 501, 1, 0, 10_000))
    shown = bench.view(0).xids
    assert len(shown) == MAX_XIDS + 1
    assert (shown["1"], shown["other"]) == (2, 4)


def test_strange_gpus_are_left_out() -> None:
    """A GPU with a duplicate UUID or none, a GPU above the limit and an Xid of no GPU are counted and dropped."""
    bench = Bench()
    strange = (msgspec.structs.replace(gpu(1), uuid="GPU-0"), GpuReading(2))
    many = (GpuReading(10 + number, f"GPU-x{number}") for number in range(MAX_GPUS))
    bench.look(gpu(0), *strange, *many, events=[XidEvent("", 79)])
    assert len(bench.gpus.views) == MAX_GPUS
    assert bench.gpus.errors == {"duplicate": 1, "nameless": 1, "too_many_gpus": 1, "event_of_unknown_gpu": 1}
