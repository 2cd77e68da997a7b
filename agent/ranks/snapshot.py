"""The rank table as others see it: frozen, for the render thread and the pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import RankLabel
from agent.ranks.liveness.job_line import JobLine
from agent.ranks.naming.labels import LabelBook
from agent.ranks.rank.process import RankGpu, RankProcess, TableCounts


class RankView(msgspec.Struct, frozen=True):
    """One rank as published: its label and process, frozen at the time of the snapshot."""

    label: RankLabel
    slot: int
    process: RankProcess

    def gpus(self) -> tuple[RankGpu, ...]:
        """The rank's own GPUs: of a process of several ranks with as many GPUs each rank has one, in their order."""
        found, slots = self.process.gpus, self.process.slots or ()
        return (found[self.slot],) if len(found) == len(slots) > 1 else found


class RankSnapshot(msgspec.Struct, frozen=True):
    """What ``families`` renders; ``taken_seconds``: the wall clock when it was taken, since the epoch;
    ``taken_at``: seconds since the boot. ``jobs``: the lines of the liveness book, by job id.

    ``usage_unread``: of how many live ranks a source says nothing of what they use, by source.
    ``without_nccl``: processes that an environment calls ranks, and that have not loaded NCCL.
    """

    ranks: tuple[RankView, ...]
    conflicts: int
    owner_conflicts: int
    duplicates: int
    refused: int
    unidentified: int
    unreadable: int
    taken_seconds: float
    taken_at: float = 0.0
    jobs: Mapping[str, JobLine] = {}
    usage_unread: Mapping[str, int] = {}
    without_nccl: int = 0


def take_snapshot(
    processes: Iterable[RankProcess],
    labels: LabelBook,
    counts: TableCounts,
    duplicates: int,
    usage_unread: Mapping[str, int],
    without_nccl: int,
    jobs: Mapping[str, JobLine],
    clock: Clock,
) -> RankSnapshot:
    """Copy what is shown: the ranks whose process was seen to run or to leave and holds the label, by job and rank.

    ``jobs``: frozen lines of the liveness book.
    """
    ranks = []
    unidentified = unreadable = 0
    for process in processes:
        if process.exited_at is None:
            unidentified += process.slots is None and process.is_surely_a_rank()
            unreadable += process.facts is not None and process.facts.environment is None
        if not process.confirmed or not process.slots:
            continue
        frozen = msgspec.structs.replace(process, members=dict(process.members))
        for slot, label in enumerate(process.slots):
            if label is not None and labels.holds(process, label):
                ranks.append(RankView(label, slot, frozen))
    ranks.sort(key=lambda view: (view.label.job_id, len(view.label.rank), view.label.rank))
    return RankSnapshot(
        ranks=tuple(ranks),
        conflicts=counts.conflicts,
        owner_conflicts=counts.owner_conflicts,
        duplicates=duplicates,
        refused=counts.refused,
        unidentified=unidentified,
        unreadable=unreadable,
        usage_unread=usage_unread,
        without_nccl=without_nccl,
        taken_seconds=clock.time(),
        taken_at=clock.monotonic(),
        jobs=jobs,
    )
