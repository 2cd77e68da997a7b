"""One rank process: what is known of it, and what follows from that. Pure."""

from __future__ import annotations

import msgspec

from agent.core.identity import Membership, ProcessKey, RankLabel
from agent.ranks.environment import Claim
from agent.ranks.verdict import ExitStatus, ProcessEvidence, RankVerdict, RasSilence
from agent.system.procfs import ProcessFacts

SIGN_OF_LIFE_SECONDS = 5.0
"""Records may be that late: what is newer was made after RAS had missed the process."""


class RankGpu(msgspec.Struct, frozen=True):
    """A GPU that a process uses: the driver's index, UUID, PCI address, and the NIC near it (empty: none is known)."""

    index: int
    uuid: str
    pci: str
    nic: str


class RankProcess(msgspec.Struct):
    """One process of one or several ranks, or (``facts`` None) a writer of records whose process was never seen.

    ``slots``: its labels once bound, in the order of their ranks in its largest communicator; a slot that repeats a
    label of another live process is None. ``unproven_since``: it ran at this time and was not seen to run later (the
    agent was away). ``gpus``: those it uses, or used when it was last seen to use any. Times ending in ``_at`` or
    ``_since`` are monotonic.
    """

    found_at: float
    facts: ProcessFacts | None = None
    claim: Claim = Claim()
    members: dict[tuple[str, int], Membership] = {}
    seen_at: dict[str, float] = {}
    slots: list[RankLabel | None] | None = None
    source: str = ""
    exited_at: float | None = None
    exited_seconds: float = 0.0
    exit: ExitStatus | None = None
    state: str = "S"
    blocked_since: float | None = None
    kill_pending: bool = False
    finalized: bool = False
    progress_seconds: float | None = None
    confirmed: bool = True
    unproven_since: float | None = None
    verdict: RankVerdict | None = None
    silence: RasSilence | None = None
    gpus: tuple[RankGpu, ...] = ()

    def ranks(self, unique: bool) -> tuple[list[int], str]:
        """The global ranks of the process and who says so (environment, communicator); nothing while nobody does.

        The environment names one rank, so it is not believed of a process of several, nor when siblings claim the
        same number (``unique`` False; then it is a node's rank): the communicator is.
        """
        world = self.world()
        local = self.local_ranks(world.comm) if world is not None else []
        if self.claim.rank is not None and len(local) <= 1 and (unique or not local):
            return [self.claim.rank], "environment"
        return local, "communicator"

    def contradicts(self, membership: Membership) -> bool:
        """True when a place in the world communicator is another rank than the published labels say."""
        if not self.slots or membership.size != self.claim.world_size:
            return False
        return all(label is None or label.rank != str(membership.comm_rank) for label in self.slots)

    def evidence(self, key: ProcessKey) -> ProcessEvidence:
        """What the witnesses say, for the verdict."""
        late = 0.0
        if self.exited_at is not None and self.progress_seconds is not None:
            late = self.progress_seconds - self.exited_seconds
        return ProcessEvidence(
            key=key,
            found_at=self.found_at,
            exited_at=self.exited_at,
            exit=self.exit,
            state=self.state,
            blocked_since=self.blocked_since,
            kill_pending=self.kill_pending,
            finalized=self.finalized,
            progress_after_exit_seconds=late,
            unproven_since=self.unproven_since,
            before=None if self.verdict is None else self.verdict.reason,
            silence=self._silence(),
        )

    def _silence(self) -> RasSilence | None:
        """What RAS misses of it; records that go on are a sign of life."""
        silence = self.silence
        if silence is None or self.progress_seconds is None:
            return silence
        if self.progress_seconds <= silence.since_seconds + SIGN_OF_LIFE_SECONDS:
            return silence
        return msgspec.structs.replace(silence, contradicted=True)

    def local_ranks(self, comm: str) -> list[int]:
        """This process' ranks in ``comm``, in order."""
        return sorted(rank for name, rank in self.members if name == comm)

    def world(self) -> Membership | None:
        """A membership of its largest communicator (the smallest hash among equals)."""
        return min(self.members.values(), key=lambda m: (-m.size, m.comm, m.comm_rank), default=None)
