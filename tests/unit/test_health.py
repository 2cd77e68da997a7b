"""The effect of failed checks on ranks and on the node."""

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from rank_table import Table, environment

from agent.core.identity import Membership
from agent.hardware.inventory import Gpu, Hardware, Nic
from agent.hardware.ledger import NODE, CheckState, HealthLedger, Subject
from agent.ranks.health import HealthSnapshot, counted_checks, families
from agent.ranks.naming.binding import BINDING_SECONDS

DEFAULT = counted_checks([], [])
ROOT = "pci0000:00"


class Machine:
    """Two ranks, each on its own GPU with a NIC near it."""

    def __init__(self) -> None:
        self.table = Table()
        self.hardware = Hardware()
        self.ledger = HealthLedger(FakeClock())
        self.checks = self.ledger.of("test")
        self.hardware.of("nvml").observe_gpus([Gpu(i, f"GPU-{i}", f"0000:1{i}:00.0", (ROOT, f"b{i}")) for i in (0, 1)])
        self.hardware.of("rdma").observe_nics([Nic(f"mlx5_{i}", "", (ROOT, f"b{i}", "n")) for i in (0, 1)])
        self.hardware.of("nvml").observe_gpu_processes({10: ["GPU-0"], 11: ["GPU-1"]})
        self.keys = [self.table.add(10 + rank, environment(rank)) for rank in (0, 1)]
        self.table.ranks.observe_gpus(self.hardware)
        self.table.tick(BINDING_SECONDS)

    def series(self, counted: frozenset[str] = DEFAULT) -> dict[tuple[str, ...], float]:
        """Return all series, keyed by family (without its prefix) and labels."""
        snapshot = HealthSnapshot(self.table.ranks.timed_snapshot(), self.ledger.entries(), counted)
        return {
            (sample.name.removeprefix("rankwatch_"), *sample.labels.values()): sample.value
            for sample in samples(families(snapshot))
        }

    def unhealthy(self, counted: frozenset[str] = DEFAULT) -> list[tuple[str, ...]]:
        """Return rank and reason of each unhealthy rank."""
        return [key[2:] for key in self.series(counted) if key[0] == "rank_unhealthy"]


@pytest.fixture
def machine() -> Machine:
    """Provide a machine on which no check has run."""
    return Machine()


@pytest.mark.parametrize(("subject", "check", "ranks"), [
    (Subject("gpu", "GPU-1"), "gpu_xid", ["1"]),
    (Subject("nic", "mlx5_0"), "rdma_port_down", ["0"]),
    (NODE, "machine_check", ["0", "1"]),
    (NODE, "nvswitch_fatal", ["0", "1"]),
    (Subject("gpu", "GPU-7"), "gpu_lost", []),
])  # fmt: skip
def test_a_failed_check_concerns_the_ranks_that_stand_on_it(
    machine: Machine, subject: Subject, check: str, ranks: list[str]
) -> None:
    """A GPU fault affects its rank, a NIC fault a rank near it, a node fault all ranks; each fault affects the node."""
    machine.checks.report(NODE, "gpu_driver_hung", CheckState.OK)
    machine.checks.latch(subject, check)
    assert machine.unhealthy() == [(rank, check) for rank in ranks]
    series = machine.series()
    assert {rank: series["rank_healthy", "4711", rank] for rank in "01"} == {
        rank: float(rank not in ranks) for rank in "01"
    }
    assert series["node_healthy",] == 0
    assert (series["node_check_success", check], series["node_check_success", "gpu_driver_hung"]) == (0, 1)
    assert ("check_failed_since_timestamp_seconds", check, *subject) in series


def test_checks_that_do_not_count_are_shown_without_effect(machine: Machine) -> None:
    """By default, a hot GPU and a read-only file system make no rank unhealthy; the configuration can change this."""
    machine.checks.report(Subject("gpu", "GPU-0"), "gpu_hot", CheckState.FAILED)
    machine.checks.report(NODE, "filesystem_read_only", CheckState.FAILED)
    machine.checks.latch(Subject("gpu", "GPU-0"), "gpu_xid")
    assert machine.unhealthy() == [("0", "gpu_xid")]
    assert machine.unhealthy(counted_checks(["gpu_hot"], ["gpu_xid"])) == [("0", "gpu_hot")]
    series = machine.series(counted_checks([], ["gpu_xid"]))
    assert (series["node_healthy",], series["node_check_success", "gpu_xid"]) == (1, 0)


def test_a_lost_gpu_stays_with_a_rank_that_uses_another_too(machine: Machine) -> None:
    """A rank keeps a GPU that NVML no longer sees, even if the rank's process also uses a second GPU."""
    machine.hardware.of("nvml").observe_gpu_processes({10: ["GPU-0"], 11: ["GPU-0", "GPU-1"]})
    machine.table.ranks.observe_gpus(machine.hardware)
    machine.checks.latch(Subject("gpu", "GPU-1"), "gpu_lost")
    machine.hardware.of("nvml").observe_gpu_processes({10: ["GPU-0"], 11: ["GPU-0"]}, unseen=["GPU-1"])
    machine.table.ranks.observe_gpus(machine.hardware)
    machine.table.tick(1.0)
    assert machine.unhealthy() == [("1", "gpu_lost")]
    machine.hardware.of("nvml").observe_gpu_processes({10: ["GPU-0"], 11: ["GPU-0"]})
    machine.table.ranks.observe_gpus(machine.hardware)
    machine.table.tick(1.0)
    assert machine.unhealthy() == []


def test_a_process_of_two_ranks_has_a_gpu_for_each() -> None:
    """If a process of two ranks has two GPUs, each rank has one of them, in order."""
    machine = Machine()
    key = machine.table.add(20, {"SLURM_JOB_ID": "9"})
    machine.table.ranks.observe_memberships(key, [Membership("aa", rank, 2) for rank in (0, 1)])
    machine.hardware.of("nvml").observe_gpu_processes({20: ["GPU-0", "GPU-1"]})
    machine.table.ranks.observe_gpus(machine.hardware)
    machine.table.tick(BINDING_SECONDS)
    machine.checks.latch(Subject("gpu", "GPU-1"), "gpu_xid")
    unhealthy = [key[1:] for key in machine.series() if key[0] == "rank_unhealthy"]
    assert ("9", "1", "gpu_xid") in unhealthy
    assert ("9", "0", "gpu_xid") not in unhealthy
