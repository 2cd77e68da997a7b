"""Which process is which rank: when that is decided, and its labels from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agent.core.clock import Clock
from agent.core.identity import UNKNOWN_RANK, ProcessKey, RankLabel, WriterKey
from agent.ranks import environment
from agent.ranks.labels import LabelBook
from agent.ranks.process import RankProcess

SETTLE_SECONDS = 1.0
"""How long a process whose environment names its rank waits for siblings that claim the same one."""
BINDING_SECONDS = 10.0
"""How long a process waits for the world communicator, or for a label that another one holds."""


class RankBinder:
    """Gives processes their labels. ``duplicates``: the keys of those that did not get all of them.

    The stand-in for a process that was never seen goes by the key of its writer.
    """

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool) -> None:
        self._clock = clock
        self._hostname = hostname
        self._settle_at_once = settle_at_once
        self.labels = LabelBook()
        self.duplicates: set[ProcessKey | WriterKey] = set()

    def bind_due(self, processes: Mapping[ProcessKey, RankProcess], unseen: Mapping[WriterKey, RankProcess]) -> int:
        """Bind the processes and stand-ins that are due; return how many were bound."""
        now = self._clock.monotonic()
        claimed: Counter[tuple[str, str, int | None]] = Counter(
            (p.claim.job_id, p.claim.group, p.claim.rank)
            for p in processes.values()
            if p.exited_at is None and p.claim.rank is not None
        )
        bound = 0
        for key, process in processes.items():
            if process.slots is None or key in self.duplicates:
                bound += self._bind_when_due(process, key, now, claimed)
        for writer_key, process in unseen.items():
            if process.slots is None:
                bound += self._bind_when_due(process, writer_key, now, claimed)
        return bound

    def bind(self, process: RankProcess, name: ProcessKey | WriterKey, unique: bool = True) -> bool:
        """Freeze the labels of a process; False when they are frozen already, or nothing names its rank.

        ``unique`` False: siblings claim the same rank.
        """
        if any(process.slots or ()):
            return False
        ranks, source = process.ranks(unique)
        if not ranks:
            return False
        world = process.world()
        job_id = process.claim.job_id or (environment.communicator_job_id(world.comm) if world else "")
        if not job_id:
            job_id = environment.short_hash("job", self._hostname)
        waited = self._clock.monotonic() - process.found_at >= BINDING_SECONDS
        slots = [self.labels.take(RankLabel(job_id, str(rank)), process, may_regroup=waited) for rank in ranks]
        if None in slots:
            if not waited and process.exited_at is None and not self._settle_at_once:
                self.labels.release(process, slots)
                return False
            self.duplicates.add(name)
        else:
            self.duplicates.discard(name)
        process.slots, process.source = slots, source
        return True

    def label(self, process: RankProcess, comm: str, comm_rank: int) -> RankLabel | None:
        """The frozen label of the rank of ``process`` that is ``comm_rank`` in ``comm``; None while it is not known."""
        if not process.slots:
            return None
        if len(process.slots) == 1:
            return process.slots[0]
        local = process.local_ranks(comm)
        if len(local) == len(process.slots) and comm_rank in local:
            return process.slots[local.index(comm_rank)]
        waited = self._clock.monotonic() - process.seen_at.get(comm, process.found_at)
        first = process.slots[0]
        if first is None or (waited < BINDING_SECONDS and process.exited_at is None and not self._settle_at_once):
            return None
        return RankLabel(first.job_id, UNKNOWN_RANK)

    def release(self, name: ProcessKey | WriterKey, process: RankProcess | None) -> None:
        """Free the labels of what was removed from the table."""
        self.duplicates.discard(name)
        if process is not None:
            self.labels.release(process)

    def restore(self, processes: Mapping[ProcessKey, RankProcess], unseen: Mapping[WriterKey, RankProcess]) -> None:
        """Give the processes of the checkpoint their labels back."""
        kept = [*processes.values(), *unseen.values()]
        for process in sorted(kept, key=lambda p: p.exited_at is None):  # live ones last: they hold the label
            self.labels.restore(process)
        self.duplicates = {key for key, process in processes.items() if None in (process.slots or ())}

    def _bind_when_due(
        self,
        process: RankProcess,
        name: ProcessKey | WriterKey,
        now: float,
        claimed: Counter[tuple[str, str, int | None]],
    ) -> bool:
        waited = now - process.found_at
        claim, world = process.claim, process.world()
        unique = claimed[(claim.job_id, claim.group, claim.rank)] <= 1
        due = (
            self._settle_at_once
            or waited >= BINDING_SECONDS
            or (claim.rank is not None and unique and waited >= SETTLE_SECONDS and (claim.job_id or world is not None))
            or (world is not None and world.size == claim.world_size)
        )
        return due and self.bind(process, name, unique)
