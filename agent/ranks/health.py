"""Health of ranks and of the node, from the findings of the health ledger. Pure.

A rank is unhealthy when a counted check has failed on one of its GPUs, on a NIC near such a GPU, or on the node as a
whole. Checks that do not count by default report wear or possible trouble; the configuration can make them count.
"""

from collections.abc import Collection, Iterable

import msgspec

from agent.core.metrics import Family, Metric
from agent.hardware import fault_table
from agent.hardware.fault_table import GpuFault
from agent.hardware.ledger import CHECKS, NODE, CheckState, Entry, Subject
from agent.ranks.snapshot import RankSnapshot, RankView

# fmt: off
RANK_HEALTHY = Family("rankwatch_rank_healthy", "gauge",
    "1 while no counted check has failed on the rank's GPUs, on the NICs near them or on the node, else 0; absent "
    "if no check covers the rank's hardware.",
    ("job_id", "rank"), "1 per rank", "max")
RANK_UNHEALTHY = Family("rankwatch_rank_unhealthy", "gauge",
    "1 for each counted check that has failed on the rank's hardware. After the rank's exit, the failed checks stay "
    "until the rank's record expires.",
    ("job_id", "rank", "reason"), "1 per rank and failed check", "max")
NODE_HEALTHY = Family("rankwatch_node_healthy", "gauge",
    "1 while no counted check has failed anywhere on the node, else 0; absent if the node has no checks.")
NODE_CHECK = Family("rankwatch_node_check_success", "gauge",
    "1 while the check passes on every GPU and NIC that it covers, 0 while it has failed on one.",
    ("check",), "1 per check that is made")
CHECK_FAILED = Family("rankwatch_check_failed_since_timestamp_seconds", "gauge",
    "When the check began to fail on a GPU (name: its UUID), a NIC (its device) or the node; absent while it passes.",
    ("check", "kind", "name"), "1 per failed check and piece of hardware")
# fmt: on
FAMILIES = (RANK_HEALTHY, RANK_UNHEALTHY, NODE_HEALTHY, NODE_CHECK, CHECK_FAILED, fault_table.GPU_FAULT)


class HealthSnapshot(msgspec.Struct, frozen=True):
    """Input of ``families``. ``counted``: checks that make a rank unhealthy. ``faults``: the GPUs' last errors."""

    ranks: RankSnapshot
    entries: tuple[Entry, ...]
    counted: frozenset[str]
    faults: tuple[GpuFault, ...] = ()

    def counted_failures(self) -> list[Entry]:
        """Return the failed checks that count."""
        checks = (entry for entry in self.entries if entry.check in self.counted)
        return [entry for entry in checks if entry.finding.state is CheckState.FAILED]


def counted_checks(count: Collection[str], ignore: Collection[str]) -> frozenset[str]:
    """Return the default counted checks, plus the checks in ``count``, minus the checks in ``ignore``."""
    return frozenset({name for name, counts in CHECKS.items() if counts} | set(count)) - frozenset(ignore)


def families(snapshot: HealthSnapshot) -> Iterable[Metric]:
    """Render the health of ranks, of the node and of each check."""
    failed = [entry for entry in snapshot.entries if entry.finding.state is CheckState.FAILED]
    yield from _ranks(snapshot)
    if snapshot.entries:
        yield NODE_HEALTHY.single(float(not snapshot.counted_failures()))
    well = dict.fromkeys((entry.check for entry in snapshot.entries), 1.0)
    well.update((entry.check, 0.0) for entry in failed)
    since = CHECK_FAILED.rows()
    first: dict[tuple[str, ...], float] = {}
    for entry in failed:  # two sources can report the same fault
        key = (entry.check, *entry.subject)
        first[key] = min(first.get(key, entry.finding.since_seconds), entry.finding.since_seconds)
    for failed_at, seconds in first.items():
        since.add(failed_at, seconds)
    yield NODE_CHECK.by_label(dict(sorted(well.items())))
    yield since.metric
    yield fault_table.rows(snapshot.faults)


def _ranks(snapshot: HealthSnapshot) -> Iterable[Metric]:
    healthy, unhealthy = RANK_HEALTHY.rows(), RANK_UNHEALTHY.rows()
    known, failed = {entry.subject for entry in snapshot.entries}, snapshot.counted_failures()
    for view in snapshot.ranks.ranks:
        hardware = subjects_of(view)
        if not known.intersection(hardware):
            continue
        reasons = {entry.check for entry in failed if entry.subject in hardware}
        healthy.add(view.label, float(not reasons))
        for reason in sorted(reasons):
            unhealthy.add((*view.label, reason), 1.0)
    return [healthy.metric, unhealthy.metric]


def subjects_of(view: RankView) -> set[Subject]:
    """Return the hardware that a rank needs: the node, the rank's GPUs and the NICs near these GPUs."""
    subjects = {NODE}
    for gpu in view.gpus():
        subjects.add(Subject("gpu", gpu.uuid))
        if gpu.nic:
            subjects.add(Subject("nic", gpu.nic))
    return subjects
