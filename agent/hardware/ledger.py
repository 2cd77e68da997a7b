"""The health ledger: what is wrong with the hardware, with which piece of it, and since when.

Owned by the event loop: every method is called there. Exporters write findings; the roll-up (agent/ranks/health.py)
says what they mean for a rank and the node. A finding is a level, told anew at every look, or latched: a fault that
stays until its recovery was seen (a reset, a counter cleared), not until it is no longer mentioned. A reboot ends the
checkpoint, and with it every latch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.clock import Clock

MAX_FINDINGS = 4096
"""Pieces of hardware times checks of one node; what does not fit is counted."""


class CheckState(StrEnum):
    """What a check found of one piece of hardware."""

    OK = "ok"
    FAILED = "failed"

    @classmethod
    def of(cls, ok: bool) -> CheckState:
        """OK when ``ok``, else FAILED."""
        return cls.OK if ok else cls.FAILED


SubjectKind: TypeAlias = Literal["gpu", "nic", "node"]


class Subject(NamedTuple):
    """A piece of hardware: a GPU by its UUID, an RDMA device by its name, or the node itself (no name).

    Hardware that nobody has named yet goes by its PCI address until it is renamed.
    """

    kind: SubjectKind
    name: str


NODE = Subject("node", "")


class Finding(msgspec.Struct, frozen=True):
    """A check of one subject: what it found, since when (epoch seconds), and whether it stays until it is cleared."""

    state: CheckState
    since_seconds: SavedSeconds
    latched: bool = False


class Entry(msgspec.Struct, frozen=True):
    """A finding with its place."""

    source: str
    subject: Subject
    check: str
    finding: Finding


Levels: TypeAlias = Mapping[tuple[Subject, str], CheckState]
"""By subject and check: what it found."""


class HealthLedger:
    """See the module. ``refused`` counts the findings that did not fit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.findings: dict[tuple[str, Subject, str], Finding] = {}
        self.refused = 0

    def of(self, source: str) -> Checks:
        """The writer of the exporter of this name."""
        return Checks(self, source)

    def put(self, source: str, subject: Subject, check: str, state: CheckState, *, latched: bool) -> None:
        """Take a finding; its time is kept while its state stays the same."""
        place = (source, subject, check)
        known = self.findings.get(place)
        if known is None and len(self.findings) >= MAX_FINDINGS:
            self.refused += 1
        elif known is None or latched or (known.state is not state and not known.latched):
            self.findings[place] = Finding(state, self._clock.time(), latched)

    def clear(self, subject: Subject | None, checks: Collection[str]) -> None:
        """End the faults of a subject, or of all subjects."""
        for place, known in list(self.findings.items()):
            if subject in (None, place[1]) and place[2] in checks and known.state is CheckState.FAILED:
                self.findings[place] = Finding(CheckState.OK, self._clock.time())

    def has_failed(self) -> bool:
        """Whether any check of anything has failed now."""
        return any(finding.state is CheckState.FAILED for finding in self.findings.values())

    def entries(self) -> tuple[Entry, ...]:
        """All findings, in order."""
        return tuple(
            Entry(*place, finding) for place, finding in sorted(self.findings.items(), key=lambda item: item[0])
        )

    def dump(self) -> bytes:
        """Encode the latched faults for the checkpoint: levels are told anew."""
        return msgspec.msgpack.encode([entry for entry in self.entries() if entry.finding.latched])

    def load(self, section: bytes) -> None:
        """Take back what ``dump`` gave earlier in this boot; raises ValueError when it cannot be read."""
        for entry in msgspec.msgpack.decode(section, type=list[Entry]):
            if len(self.findings) < MAX_FINDINGS:
                self.findings[entry.source, entry.subject, entry.check] = entry.finding


class Checks:
    """The writer of one exporter (``source``), until it has ended."""

    def __init__(self, ledger: HealthLedger, source: str) -> None:
        self._ledger = ledger
        self._source = source
        self._closed = False

    def report(self, subject: Subject, check: str, state: CheckState) -> None:
        """Write a level; a latched fault of the same place stays."""
        if not self._closed:
            self._ledger.put(self._source, subject, check, state, latched=False)

    def report_all(self, levels: Levels) -> None:
        """Replace all levels: earlier ones that are not among them are dropped."""
        for (subject, check), state in levels.items():
            self.report(subject, check, state)
        self._keep(lambda subject, check: (subject, check) in levels)

    def latch(self, subject: Subject, check: str) -> None:
        """Write a fault that stays until it is cleared; written again, its time is that of the last."""
        if not self._closed:
            self._ledger.put(self._source, subject, check, CheckState.FAILED, latched=True)

    def clear(self, subject: Subject, checks: Collection[str]) -> None:
        """A recovery was seen: it ends these faults of the subject, of every source."""
        if not self._closed:
            self._ledger.clear(subject, checks)

    def clear_everywhere(self, checks: Collection[str]) -> None:
        """A recovery of all hardware was seen (a driver loaded anew): it ends these faults of every subject."""
        if not self._closed:
            self._ledger.clear(None, checks)

    def rename(self, kind: SubjectKind, names: Mapping[str, str]) -> None:
        """Move findings from old names (addresses) to new ones; of two in one place the worse, then later, stays."""
        findings = self._ledger.findings if not self._closed else {}
        for place, finding in list(findings.items()):
            source, subject, check = place
            name = names.get(subject.name, subject.name) if subject.kind == kind else subject.name
            if name != subject.name:
                del findings[place]
                renamed = (source, Subject(kind, name), check)
                findings[renamed] = max(findings.get(renamed, finding), finding, key=_badness)

    def forget(self, kept: Collection[Subject]) -> None:
        """Drop the levels of subjects outside ``kept``; latched faults stay."""
        self._keep(lambda subject, _: subject in kept)

    def close(self) -> None:
        """Drop all levels, and ignore later writes: an update that is late may end after its exporter."""
        self._keep(lambda *_: False)
        self._closed = True

    def _keep(self, kept: Callable[[Subject, str], bool]) -> None:
        """Drop the levels of this source that ``kept`` is false for."""
        for (source, subject, check), finding in list(self._ledger.findings.items()):
            if source == self._source and not (self._closed or finding.latched or kept(subject, check)):
                del self._ledger.findings[source, subject, check]


def _badness(finding: Finding) -> tuple[bool, bool, float]:
    return finding.state is CheckState.FAILED, finding.latched, finding.since_seconds
