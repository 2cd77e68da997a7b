"""The plan of a NIXL-EP run: which ranks take part in each phase, and which ranks leave as planned. Pure.

A phase is a list of ranks. A negative number -N means: rank N takes part and the plan kills it during the phase. If
the next list lacks a rank, the plan removes the rank when the next phase begins. The other form of a phase is an
object with ``ranks`` and ``killed``.
"""

from __future__ import annotations

import msgspec

MAX_PLAN_BYTES = 1024 * 1024
MAX_PHASES = 4096
RANK_LIMIT = 1 << 20  # Rank numbers are below this
MAX_RANKS = 65_536  # Limit of ranks per phase
MAX_ENTRIES = 1 << 16  # Limit of ranks over all phases of a plan: about 6 MB


class Phase(msgspec.Struct, frozen=True):
    """Ranks of a phase. ``expected``: they stay to its end. ``killed``: by the plan. ``removed``: gone at its start."""

    expected: frozenset[int]
    killed: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()


class Plan(msgspec.Struct, frozen=True):
    """The phases of a run, in order."""

    phases: tuple[Phase, ...]

    def expected(self, phase: int) -> frozenset[int]:
        """Return the ranks that take part in a phase until its end; an empty set if the plan lacks the phase."""
        return self.phases[phase].expected if 0 <= phase < len(self.phases) else frozenset()

    def is_killed(self, rank: int, phase: int) -> bool:
        """Return whether the plan kills a rank in this phase."""
        return 0 <= phase < len(self.phases) and rank in self.phases[phase].killed

    def is_removed_after(self, rank: int, phase: int) -> bool:
        """Return whether the plan removes a rank after this phase. After the last phase all ranks leave."""
        if not 0 <= phase < len(self.phases):
            return False
        return phase == len(self.phases) - 1 or rank in self.phases[phase + 1].removed


class _NamedPhase(msgspec.Struct):
    ranks: list[int]
    killed: list[int] = []


_DECODER = msgspec.json.Decoder(list[list[int] | _NamedPhase])


def read_plan(raw: bytes) -> Plan | None:
    """Return the plan in the file's content; None if it is half written, too large or not a plan."""
    if len(raw) > MAX_PLAN_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
        return _plan([_ranks(phase) for phase in written])
    except (ValueError, RecursionError):  # msgspec and invalid UTF-8 raise ValueErrors
        return None


def _ranks(phase: list[int] | _NamedPhase) -> tuple[frozenset[int], frozenset[int]]:
    """Return the staying and the killed ranks of a phase; -0 means: rank 0 stays. Raise ValueError if out of bounds."""
    if isinstance(phase, _NamedPhase):
        named, killed = phase.ranks, [*phase.killed, *(-rank for rank in phase.ranks if rank < 0)]
    else:
        named, killed = phase, [-rank for rank in phase if rank < 0]
    if len(named) + len(killed) > 2 * MAX_RANKS or any(abs(rank) >= RANK_LIMIT for rank in (*named, *killed)):
        raise ValueError("a phase is out of bounds")
    gone = frozenset(abs(rank) for rank in killed)
    return frozenset(rank for rank in named if rank >= 0) - gone, gone


def _plan(written: list[tuple[frozenset[int], frozenset[int]]]) -> Plan:
    if not 0 < len(written) <= MAX_PHASES:
        raise ValueError("the plan has no phases or too many")
    if sum(len(stay) + len(killed) for stay, killed in written) > MAX_ENTRIES:
        raise ValueError("the plan has too many ranks in all phases")
    before: frozenset[int] = frozenset()
    phases = []
    for stay, killed in written:
        phases.append(Phase(stay, killed, before - stay - killed))
        before = stay
    return Plan(tuple(phases))
