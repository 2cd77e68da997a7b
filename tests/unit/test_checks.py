"""The health ledger: levels, latched faults, recoveries, and restarts."""

import pytest
from fake_clock import FakeClock

from agent.hardware import ledger as module
from agent.hardware.ledger import NODE, CheckState, HealthLedger, Subject

GPU, OTHER = Subject("gpu", "GPU-1"), Subject("gpu", "GPU-2")


class CheckBench:
    """A ledger, its clock, and one exporter's writer."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = HealthLedger(self.clock)
        self.checks = self.ledger.of("nvml")

    def failed(self) -> dict[tuple[str, str], float]:
        """Return the age of each failed check."""
        now = self.clock.time()
        return {
            (entry.subject.name, entry.check): now - entry.finding.since_seconds
            for entry in self.ledger.entries()
            if entry.finding.state is CheckState.FAILED
        }


@pytest.fixture
def bench() -> CheckBench:
    """Provide an empty ledger."""
    return CheckBench()


def test_a_latched_fault_stays_until_its_recovery_was_seen(bench: CheckBench) -> None:
    """A latched fault stays without reports or with an OK level; a recovery clears only the faults that it cures."""
    bench.checks.latch(GPU, "gpu_xid")
    bench.checks.latch(GPU, "gpu_ecc_uncorrectable")
    bench.clock.advance(10.0)
    bench.checks.report(GPU, "gpu_xid", CheckState.OK)
    bench.checks.forget(())
    assert bench.failed() == {("GPU-1", "gpu_xid"): 10.0, ("GPU-1", "gpu_ecc_uncorrectable"): 10.0}
    bench.checks.clear(OTHER, ["gpu_xid"])
    bench.ledger.of("kernel_log").clear(GPU, ["gpu_xid"])
    assert bench.failed() == {("GPU-1", "gpu_ecc_uncorrectable"): 10.0}


def test_a_fault_that_happens_again_counts_from_then_on(bench: CheckBench) -> None:
    """A repeated XID is a new fault, so that it is the likely cause of a death a minute later."""
    bench.checks.latch(GPU, "gpu_xid")
    bench.clock.advance(3600.0)
    bench.checks.latch(GPU, "gpu_xid")
    assert bench.failed() == {("GPU-1", "gpu_xid"): 0.0}


def test_of_two_findings_of_one_name_the_worse_stays(bench: CheckBench) -> None:
    """If two GPUs get one name, failed wins over OK, then latched over not latched, then the later over the earlier."""
    address = Subject("gpu", "0000:3b:00.0")
    for check, before, after in (("gpu_hot", True, False), ("gpu_slowdown", False, True)):
        bench.checks.report(GPU, check, CheckState.of(before))
        bench.checks.report(address, check, CheckState.of(after))
    bench.checks.latch(address, "gpu_xid")
    bench.checks.latch(GPU, "gpu_reset")
    bench.clock.advance(5.0)
    bench.checks.report(GPU, "gpu_xid", CheckState.FAILED)
    bench.checks.latch(address, "gpu_reset")
    bench.checks.rename("gpu", {"0000:3b:00.0": "GPU-1"})
    assert bench.failed() == {
        ("GPU-1", "gpu_hot"): 5.0,
        ("GPU-1", "gpu_slowdown"): 5.0,
        ("GPU-1", "gpu_xid"): 5.0,
        ("GPU-1", "gpu_reset"): 0.0,
    }


def test_a_subject_that_is_gone_is_forgotten(bench: CheckBench) -> None:
    """An exporter removes its own levels of hardware that is gone, and keeps the levels of other exporters."""
    bench.checks.report(GPU, "gpu_hot", CheckState.FAILED)
    bench.checks.report(OTHER, "gpu_hot", CheckState.FAILED)
    bench.ledger.of("amdgpu").report(OTHER, "pcie_degraded", CheckState.FAILED)
    bench.checks.forget([GPU])
    assert set(bench.failed()) == {("GPU-1", "gpu_hot"), ("GPU-2", "pcie_degraded")}


def test_levels_that_are_no_longer_reported_are_dropped(bench: CheckBench) -> None:
    """A full report of a check removes the exporter's levels that the report lacks; latched faults stay."""
    bench.ledger.of("kernel_log").report(NODE, "filesystem_read_only", CheckState.FAILED)
    bench.checks.latch(NODE, "machine_check")
    bench.checks.report_all(
        {
            (NODE, "lustre_unhealthy"): CheckState.FAILED,
            (NODE, "dump_disk_full"): CheckState.FAILED,
            (GPU, "gpu_hot"): CheckState.FAILED,
        }
    )
    bench.clock.advance(5.0)
    bench.checks.report_all({(NODE, "dump_disk_full"): CheckState.FAILED, (GPU, "gpu_hot"): CheckState.OK})
    assert bench.failed() == {
        ("", "dump_disk_full"): 5.0,
        ("", "machine_check"): 5.0,
        ("", "filesystem_read_only"): 5.0,
    }


def test_findings_beyond_the_limit_are_left_out(bench: CheckBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full ledger refuses each new finding, even from a checkpoint, and keeps the findings it has."""
    monkeypatch.setattr(module, "MAX_FINDINGS", 2)
    for name in ("gpu_xid", "gpu_lost", "gpu_reset"):
        bench.checks.latch(GPU, name)
    bench.checks.latch(GPU, "gpu_xid")
    assert set(bench.failed()) == {("GPU-1", "gpu_xid"), ("GPU-1", "gpu_lost")}
    monkeypatch.setattr(module, "MAX_FINDINGS", 1)
    again = CheckBench()
    again.ledger.load(bench.ledger.dump())
    assert len(again.failed()) == 1
