"""The health ledger: failed checks of hardware, and which checks make a GPU, a NIC or the node unhealthy by default.

The event loop owns the ledger: call every method there. Exporters write findings. The roll-up (agent/ranks/health.py)
derives the health of ranks and the node from findings. A finding is a level or a latched fault. Exporters write levels
again at every update. A latched fault stays until its recovery is seen (a reset, a counter cleared), even if no later
update reports it. After a reboot the agent does not use the checkpoint of the earlier boot, so no latched fault is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.clock import Clock
from agent.core.leased import Leased
from agent.core.log import Logger

MAX_FINDINGS = 4096  # Findings of one node. Findings beyond this limit are dropped, and the log says so.

CHECKS: Mapping[str, bool] = {
    "gpu_lost": True, "gpu_driver_hung": True, "gpu_xid": True, "gpu_xid_warning": False,
    "gpu_ecc_uncorrectable": True, "gpu_row_remap_failed": True, "gpu_row_remap_pending": False,
    "gpu_recovery_action": True, "gpu_slowdown": False, "gpu_hot": False, "gpu_reset": True, "gpu_fabric": True,
    "pcie_degraded": False, "pcie_errors": False, "nvlink_down": True, "nvlink_errors": False, "nvswitch_fatal": True,
    "xgmi_down": False, "xgmi_errors": False, "rdma_device_missing": True, "rdma_port_down": True,
    "rdma_rate_degraded": False, "nic_fatal": True, "machine_check": True, "filesystem_read_only": False,
    "nfs_not_responding": False, "storage_failed": False, "lustre_unhealthy": False, "dump_disk_full": False,
}  # fmt: skip
"""All checks, and whether a failure makes the hardware unhealthy by default; the configuration can override it."""

_LOG = Logger("health")


class CheckState(StrEnum):
    """The result of a check of one piece of hardware."""

    OK = "ok"
    FAILED = "failed"

    @classmethod
    def of(cls, ok: bool) -> CheckState:
        """Return OK when ``ok``, else FAILED."""
        return cls.OK if ok else cls.FAILED


SubjectKind: TypeAlias = Literal["gpu", "nic", "node"]


class Subject(NamedTuple):
    """A piece of hardware: a GPU by its UUID, an RDMA device by its name, or the node itself (no name).

    Hardware without a known name has its PCI address as name, until ``Checks.rename``.
    """

    kind: SubjectKind
    name: str


NODE = Subject("node", "")


class Finding(msgspec.Struct, frozen=True):
    """The state of one check of one subject.

    ``since_seconds``: epoch seconds of the change to this state, or of the last write of a latched fault. ``latched``:
    the fault stays until it is cleared.
    """

    state: CheckState
    since_seconds: SavedSeconds
    latched: bool = False


class Entry(msgspec.Struct, frozen=True):
    """A finding with its source, subject and check."""

    source: str
    subject: Subject
    check: str
    finding: Finding


Levels: TypeAlias = Mapping[tuple[Subject, str], CheckState]  # The result of each check, by subject and check


class HealthLedger:
    """All findings of this node, by source, subject and check."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.findings: dict[tuple[str, Subject, str], Finding] = {}

    def of(self, source: str) -> Checks:
        """Return the writer for the exporter named ``source``."""
        return Checks(self, source)

    def has_failed(self) -> bool:
        """Return True while any check is in the state FAILED."""
        return any(finding.state is CheckState.FAILED for finding in self.findings.values())

    def entries(self) -> tuple[Entry, ...]:
        """Return all findings, in the order of source, subject and check."""
        return tuple(Entry(*key, finding) for key, finding in sorted(self.findings.items(), key=lambda item: item[0]))

    def dump(self) -> bytes:
        """Return the latched faults, encoded for the checkpoint. Levels are not saved: exporters write them again."""
        return msgspec.msgpack.encode([entry for entry in self.entries() if entry.finding.latched])

    def load(self, section: bytes) -> None:
        """Restore the result of ``dump`` from earlier in this boot. Raise ValueError if it cannot be decoded."""
        for entry in msgspec.msgpack.decode(section, type=list[Entry]):
            if len(self.findings) < MAX_FINDINGS:
                self.findings[entry.source, entry.subject, entry.check] = entry.finding


class Checks(Leased[HealthLedger]):
    """Writes findings for one exporter."""

    def report(self, subject: Subject, check: str, state: CheckState) -> None:
        """Write a level; an unchanged level keeps its time. A latched fault of the same subject and check stays."""
        self._put(subject, check, state, latched=False)

    def report_all(self, levels: Levels) -> None:
        """Replace all levels. Earlier levels that are not in ``levels`` are dropped."""
        self.ensure_open()
        for (subject, check), state in levels.items():
            self.report(subject, check, state)
        self._drop_levels_unless(lambda subject, check: (subject, check) in levels)

    def latch(self, subject: Subject, check: str) -> None:
        """Write a fault that stays until it is cleared. The fault's time is the time of the last write."""
        self._put(subject, check, CheckState.FAILED, latched=True)

    def clear(self, subject: Subject | None, checks: Collection[str]) -> None:
        """End the faults of these checks on ``subject`` (None: all hardware), from every source, after the recovery."""
        table = self._lent
        for key, known in list(table.findings.items()):
            if subject in (None, key[1]) and key[2] in checks and known.state is CheckState.FAILED:
                table.findings[key] = Finding(CheckState.OK, table.clock.time())

    def rename(self, kind: SubjectKind, names: Mapping[str, str]) -> None:
        """Rename hardware of this kind in all findings. ``names``: old name (a PCI address) to new name.

        If both names have a finding of one check, the worse finding stays; if both are equally bad, the later finding.
        """
        findings = self._lent.findings
        for key, finding in list(findings.items()):
            source, subject, check = key
            name = names.get(subject.name, subject.name) if subject.kind == kind else subject.name
            if name != subject.name:
                del findings[key]
                renamed = (source, Subject(kind, name), check)
                findings[renamed] = max(findings.get(renamed, finding), finding, key=_badness)

    def forget(self, present: Collection[Subject]) -> None:
        """Drop the levels of subjects outside ``present``; latched faults stay."""
        self.ensure_open()
        self._drop_levels_unless(lambda subject, _: subject in present)

    def close(self) -> None:
        """Drop all levels; latched faults stay."""
        self._drop_levels_unless(lambda *_: False)
        super().close()

    def _put(self, subject: Subject, check: str, state: CheckState, *, latched: bool) -> None:
        table, key = self._lent, (self._source, subject, check)
        known = table.findings.get(key)
        if known is None and len(table.findings) >= MAX_FINDINGS:
            _LOG.warning("the health ledger is full: a finding was left out", check=check, source=self._source)
        elif known is None or latched or (known.state is not state and not known.latched):
            table.findings[key] = Finding(state, table.clock.time(), latched)

    def _drop_levels_unless(self, stays: Callable[[Subject, str], bool]) -> None:
        findings = self._table.findings
        for (source, subject, check), finding in list(findings.items()):
            if source == self._source and not (finding.latched or stays(subject, check)):
                del findings[source, subject, check]


def _badness(finding: Finding) -> tuple[bool, bool, float]:
    return finding.state is CheckState.FAILED, finding.latched, finding.since_seconds
