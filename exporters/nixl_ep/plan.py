"""The plan of a NIXL-EP run: which ranks take part in each phase, and which leave as planned. Pure.

A phase is a list of ranks. A negative one takes part and is killed during the phase; one that took part and is not in
the next list is removed when that begins. The other form of a phase has its ranks and those to be killed by name.
"""

from __future__ import annotations

import msgspec

MAX_PLAN_BYTES = 1024 * 1024
MAX_PHASES = 4096
MAX_RANK = 1 << 20
MAX_RANKS = 65_536
"""Of one phase."""
MAX_ENTRIES = 1 << 16
"""Of all phases: about 6 MB for a plan."""


class Phase(msgspec.Struct, frozen=True):
    """``expected``: the ranks that take part and stay; ``killed`` during it; ``removed`` when it begins."""

    expected: frozenset[int]
    killed: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()

    @property
    def members(self) -> frozenset[int]:
        """All that take part."""
        return self.expected | self.killed


class Plan(msgspec.Struct, frozen=True):
    """The phases in order."""

    phases: tuple[Phase, ...]

    def expected(self, phase: int) -> frozenset[int]:
        """The ranks that take part in a phase to its end; none in one that the plan has not."""
        return self.phases[phase].expected if 0 <= phase < len(self.phases) else frozenset()

    def is_killed(self, rank: int, phase: int) -> bool:
        """Whether the plan kills a rank in this phase."""
        return 0 <= phase < len(self.phases) and rank in self.phases[phase].killed

    def is_removed_after(self, rank: int, phase: int) -> bool:
        """Whether a rank is removed as the phase after this one begins; after the last one all are."""
        if not 0 <= phase < len(self.phases):
            return False
        return phase == len(self.phases) - 1 or rank in self.phases[phase + 1].removed

    def is_planned_failure(self, rank: int, phase: int) -> bool:
        """Whether peers in this phase miss a rank as planned: it is killed in it, or was in the one before."""
        return self.is_killed(rank, phase - 1) or self.is_killed(rank, phase)


class _NamedPhase(msgspec.Struct):
    ranks: list[int]
    killed: list[int] = []


_DECODER = msgspec.json.Decoder(list[list[int] | _NamedPhase])


def read_plan(raw: bytes) -> Plan | None:
    """What a plan says; None where it is half written, too large or none."""
    if len(raw) > MAX_PLAN_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
        return _plan([_ranks(each) for each in written])
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return None


def _ranks(phase: list[int] | _NamedPhase) -> tuple[frozenset[int], frozenset[int]]:
    """The ranks of a phase that stay, and those that are killed; -0 is 0 and stays."""
    if isinstance(phase, _NamedPhase):
        named, killed = phase.ranks, [*phase.killed, *(-rank for rank in phase.ranks if rank < 0)]
    else:
        named, killed = phase, [-rank for rank in phase if rank < 0]
    if len(named) + len(killed) > 2 * MAX_RANKS or any(abs(rank) >= MAX_RANK for rank in (*named, *killed)):
        raise ValueError("a phase out of bounds")
    gone = frozenset(abs(rank) for rank in killed)
    return frozenset(rank for rank in named if rank >= 0) - gone, gone


def _plan(written: list[tuple[frozenset[int], frozenset[int]]]) -> Plan:
    if not 0 < len(written) <= MAX_PHASES:
        raise ValueError("no phases, or too many")
    if sum(len(stay) + len(killed) for stay, killed in written) > MAX_ENTRIES:
        raise ValueError("too many ranks in all")
    before: frozenset[int] = frozenset()
    phases = []
    for stay, killed in written:
        phases.append(Phase(stay, killed, before - stay - killed))
        before = stay
    return Plan(tuple(phases))
