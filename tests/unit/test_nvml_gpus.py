"""NVML, all GPUs over time: lost ones, resets, Xids, and what is remembered."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.sdk.hardware import CheckState, fault_table
from exporters.nvml.gpus import MAX_XIDS, Gpus, GpuVerdict, GpuView, Remembered
from exporters.nvml.reading import MAX_GPUS, GpuReading, Link, LookAnswer, XidEvent

NOW = 1_700_000_000.0
STEP_SECONDS = 10.0


def gpu(index: int, **values: int) -> GpuReading:
    """A GPU whose UUID is GPU-index."""
    return GpuReading(index, f"GPU-{index}", "H100", f"00000000:0{index}:00.0", values=values)


def xid(index: int, *codes: int) -> tuple[XidEvent, ...]:
    """What a GPU tells."""
    return tuple(XidEvent(f"GPU-{index}", code) for code in codes)


class Bench:
    """GPUs that are looked at every ten seconds."""

    def __init__(self, remembered: dict[str, Remembered] | None = None) -> None:
        self.gpus = Gpus(85.0, remembered or {})
        self.verdicts: dict[str, GpuVerdict] = {}
        self.now = NOW

    def look(self, *readings: GpuReading, events: Iterable[XidEvent] = (), error: str = "") -> None:
        answer = LookAnswer(error, gpus=readings, events=tuple(events))
        self.now += STEP_SECONDS
        self.verdicts = {each.subject: each for each in self.gpus.observe(answer, STEP_SECONDS, self.now)}

    def view(self, index: int) -> GpuView:
        (found,) = [view for view in self.gpus.views if view.index == index]
        return found

    def restarted(self) -> Bench:
        saved = msgspec.msgpack.encode(self.gpus.remembered)
        return Bench(msgspec.msgpack.decode(saved, type=dict[str, Remembered]))

    def lost(self) -> list[str]:
        return [name for name, verdict in self.verdicts.items() if verdict.levels.get("gpu_lost") is CheckState.FAILED]


def test_a_gpu_that_nobody_knew_is_lost_without_a_name() -> None:
    """Lost before its UUID was told it goes by its index, but not beside a known one that is missed there."""
    nameless = GpuReading(1, lost=True)
    bench = Bench()
    bench.look(gpu(0), nameless)
    assert bench.lost() == ["index 1"]
    assert (bench.view(1).uuid, bench.view(1).reading) == ("", None)
    bench.look(gpu(0), gpu(1))
    assert bench.lost() == []
    bench.look(gpu(0), nameless)
    assert bench.lost() == ["GPU-1"]
    assert len(bench.gpus.views) == 2


def test_a_reset_while_the_agent_was_down() -> None:
    """The last look is remembered, and counters below it are a reset."""
    bench = Bench()
    bench.look(gpu(0, energy_millijoules=100))
    bench.look(gpu(0, energy_millijoules=900))
    bench.gpus.keep_signs()
    again = bench.restarted()
    again.look(gpu(0, energy_millijoules=500))
    assert again.verdicts["GPU-0"].recovered == ("gpu_xid", "gpu_xid_warning", "gpu_lost")
    again.look(gpu(0, energy_millijoules=600))
    assert again.verdicts["GPU-0"].recovered == ()
    assert again.gpus.remembered["GPU-0"].signs == {"energy_millijoules": 500}


def test_an_unchanged_node_is_not_written_again() -> None:
    """Only what must be remembered counts as a change."""
    bench = Bench()
    bench.look(gpu(0, energy_millijoules=1))
    assert bench.gpus.changed
    bench.gpus.changed = False
    bench.look(gpu(0, energy_millijoules=2))
    assert not bench.gpus.changed
    bench.look(msgspec.structs.replace(gpu(0, energy_millijoules=3), links=(Link(4, up=True),)))
    assert bench.gpus.changed
    assert bench.restarted().gpus.remembered["GPU-0"].links == {4}


def test_which_xids_fail_a_check() -> None:
    """A code that is broken hardware by its number alone latches a fault; a program's fault, or another, does not."""
    checks = {"gpu_xid": (79, 95, 109, 158), "gpu_xid_warning": (92,), "": (13, 31, 45, 94, 149, 154, 9999)}
    for check, codes in checks.items():
        for code in codes:
            bench = Bench()
            bench.look(gpu(0), events=xid(0, code))
            assert bench.verdicts["GPU-0"].faults == ((check,) if check else ()), code


def test_what_the_xids_of_a_gpu_mean() -> None:
    """Each number with its meaning, by the GPU's address, until it is too old; what is no Xid has none."""
    bench = Bench()
    bench.look(gpu(0), gpu(1), events=(*xid(0, 79, 0), *xid(1, 94)))
    meanings = {pci: [each.fault.meaning for each in seen] for pci, seen in bench.gpus.faults(bench.now).items()}
    assert meanings == {"0000:00:00.0": ["GPU has fallen off the bus"], "0000:01:00.0": ["contained memory error"]}
    assert bench.gpus.faults(bench.now + fault_table.MAX_AGE_SECONDS + 1) == {"0000:00:00.0": [], "0000:01:00.0": []}


def test_xids_of_a_gpu_that_is_lost_or_while_nvml_fails() -> None:
    """They are counted all the same: that is when they matter."""
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
    """Beyond 32 different Xids, and for numbers that are none, they are other; those known are still told apart."""
    bench = Bench()
    bench.look(gpu(0), events=xid(0, *range(1, MAX_XIDS + 1), 500, 501, 1, 0, 10_000))
    shown = bench.view(0).xids
    assert len(shown) == MAX_XIDS + 1
    assert (shown["1"], shown["other"]) == (2, 4)


def test_strange_gpus_are_left_out() -> None:
    """A second GPU of one UUID, one without, those beyond the limit, and an Xid of none of them only count."""
    bench = Bench()
    twin = msgspec.structs.replace(gpu(1), uuid="GPU-0")
    bench.look(
        gpu(0),
        twin,
        GpuReading(2),
        *(GpuReading(10 + number, f"GPU-x{number}") for number in range(MAX_GPUS)),
        events=[XidEvent("", 79)],
    )
    assert len(bench.gpus.views) == MAX_GPUS
    assert bench.gpus.errors == {"duplicate": 1, "nameless": 1, "too_many_gpus": 1, "event_of_unknown_gpu": 1}


def test_votes_become_levels_when_they_keep_coming() -> None:
    """Sixteen hot looks of thirty are a hot GPU, and a reset begins anew."""
    bench = Bench()
    for _ in range(15):
        bench.look(gpu(0, temperature_celsius=90, energy_millijoules=9))
    assert bench.verdicts["GPU-0"].levels["gpu_hot"] is CheckState.OK
    bench.look(gpu(0, temperature_celsius=90, energy_millijoules=9))
    assert bench.verdicts["GPU-0"].levels["gpu_hot"] is CheckState.FAILED
    bench.look(gpu(0, temperature_celsius=90, energy_millijoules=1))
    assert bench.verdicts["GPU-0"].levels["gpu_hot"] is CheckState.OK


def test_a_gpu_under_another_index() -> None:
    """When NVML numbers anew, the GPU keeps its history under its UUID and shows its new index."""
    bench = Bench()
    bench.look(gpu(0), gpu(1), events=xid(1, 63))
    bench.look(msgspec.structs.replace(gpu(1), index=0))
    assert sorted((view.index, view.uuid) for view in bench.gpus.views) == [(0, "GPU-0"), (0, "GPU-1")]
    (known,) = [view for view in bench.gpus.views if view.uuid == "GPU-1"]
    assert known.xids["63"] == 1
