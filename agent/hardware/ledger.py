"""The health ledger: what is wrong with the hardware, with which piece of it, and since when.

Owned by the event loop: every method is called there. Exporters write findings; the roll-up (agent/ranks/health.py)
says what they mean for a rank and the node. A finding is a level, told anew at every look, or latched: a fault that
stays until its recovery was seen (a reset, a counter cleared), not until it is no longer mentioned. A reboot ends the
checkpoint, and with it every latch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
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


SubjectKind = Literal["gpu", "nic", "node"]


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


class Checks:
    """What one exporter (``source``) may write, until it has ended."""

    def __init__(self, ledger: HealthLedger, source: str) -> None:
        self._ledger = ledger
        self._source = source
        self._closed = False

    def report(self, subject: Subject, check: str, state: CheckState) -> None:
        """Tell a level; a latched fault of the same place stays."""
        if not self._closed:
            self._ledger.put(self._source, subject, check, state, latched=False)

    def report_all(self, levels: Levels) -> None:
        """Replace all levels: those reported before that are not among them are dropped."""
        for (subject, check), state in levels.items():
            self.report(subject, check, state)
        self._drop(lambda subject, check: (subject, check) not in levels)

    def latch(self, subject: Subject, check: str) -> None:
        """Report a fault that stays until it is cleared; reported again, it counts from then on (it happened again)."""
        if not self._closed:
            self._ledger.put(self._source, subject, check, CheckState.FAILED, latched=True)

    def clear(self, subject: Subject, checks: Collection[str]) -> None:
        """Say that a recovery was seen, which ends these faults of the subject, whoever told of them."""
        if not self._closed:
            self._ledger.clear(subject, checks)

    def clear_everywhere(self, checks: Collection[str]) -> None:
        """Say that a recovery of all hardware was seen (a driver loaded anew), also of what nobody has named yet."""
        if not self._closed:
            self._ledger.clear(None, checks)

    def rename(self, kind: SubjectKind, names: Mapping[str, str]) -> None:
        """Say what pieces of hardware are called of which only an address was known: old name to new."""
        if not self._closed:
            self._ledger.rename(kind, names)

    def forget(self, kept: Collection[Subject]) -> None:
        """Drop the levels of subjects that are no longer looked at; faults that are latched stay."""
        self._drop(lambda subject, _: subject not in kept)

    def close(self) -> None:
        """Drop all levels, and take nothing more: an update that is late may end after its exporter."""
        self._drop(lambda *_: True)
        self._closed = True

    def _drop(self, over: Callable[[Subject, str], bool]) -> None:
        if not self._closed:
            self._ledger.drop_levels(self._source, over)


class HealthLedger:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, Subject, str], Finding] = {}
        self.refused = 0

    def of(self, source: str) -> Checks:
        """What the exporter of this name writes."""
        return Checks(self, source)

    def put(self, source: str, subject: Subject, check: str, state: CheckState, *, latched: bool) -> None:
        """Take a finding; since when it is so is kept while it stays the same."""
        place = (source, subject, check)
        known = self._found.get(place)
        if known is None and len(self._found) >= MAX_FINDINGS:
            self.refused += 1
        elif known is None or latched or (known.state is not state and not known.latched):
            self._found[place] = Finding(state, self._clock.time(), latched)

    def clear(self, subject: Subject | None, checks: Collection[str]) -> None:
        """End the faults of a subject, or of all there are: what was found wrong is well."""
        for place, known in list(self._found.items()):
            if subject in (None, place[1]) and place[2] in checks and known.state is CheckState.FAILED:
                self._found[place] = Finding(CheckState.OK, self._clock.time())

    def rename(self, kind: SubjectKind, names: Mapping[str, str]) -> None:
        """Move what was found under old names to the new ones; of two findings of one place the worse, then later."""
        for place, finding in list(self._found.items()):
            source, subject, check = place
            name = names.get(subject.name, subject.name) if subject.kind == kind else subject.name
            if name == subject.name:
                continue
            del self._found[place]
            there = (source, Subject(kind, name), check)
            self._found[there] = max(self._found.get(there, finding), finding, key=_badness)

    def drop_levels(self, source: str, over: Callable[[Subject, str], bool]) -> None:
        """Drop what a source found and is not latched, where ``over`` says of subject and check that it is."""
        for (name, subject, check), finding in list(self._found.items()):
            if name == source and not finding.latched and over(subject, check):
                del self._found[name, subject, check]

    def has_failed(self) -> bool:
        """Whether any check of anything has failed now."""
        return any(finding.state is CheckState.FAILED for finding in self._found.values())

    def entries(self) -> tuple[Entry, ...]:
        """All findings, in order."""
        return tuple(Entry(*place, finding) for place, finding in sorted(self._found.items(), key=lambda item: item[0]))

    def dump(self) -> bytes:
        """Encode the latched faults for the checkpoint: levels are told anew."""
        return msgspec.msgpack.encode([entry for entry in self.entries() if entry.finding.latched])

    def load(self, section: bytes) -> None:
        """Take back what ``dump`` gave earlier in this boot; raises ValueError when it cannot be read."""
        self._load(msgspec.msgpack.decode(section, type=list[Entry]))

    def _load(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if len(self._found) < MAX_FINDINGS:
                self._found[entry.source, entry.subject, entry.check] = entry.finding


def _badness(finding: Finding) -> tuple[bool, bool, float]:
    return finding.state is CheckState.FAILED, finding.latched, finding.since_seconds
