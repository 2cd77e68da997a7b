"""Assign labels to processes: each (job, rank) belongs to one process at a time."""

from agent.core.identity import RankLabel
from agent.ranks.rank.process import RankProcess


class LabelHolders:
    """The holder of each label. A live process keeps its label, and takes labels from ended and unseen processes."""

    def __init__(self) -> None:
        self._holders: dict[RankLabel, RankProcess] = {}

    def take(self, label: RankLabel, process: RankProcess) -> RankLabel | None:
        """Give ``label`` to ``process`` and return it; None if a live process holds it."""
        holder = self._holders.get(label)
        if holder is None or holder is process or holder.facts is None:
            free = True
        else:
            newer = process.exited_at is None or process.found_at > holder.found_at
            free = holder.exited_at is not None and process.facts is not None and newer
        if not free:
            return None
        self._holders[label] = process
        return label

    def release(self, process: RankProcess, labels: list[RankLabel | None] | None = None) -> None:
        """Free the ``labels`` that ``process`` holds; by default all its labels."""
        for label in (process.slots or []) if labels is None else labels:
            if label is not None and self._holders.get(label) is process:
                del self._holders[label]

    def restore(self, process: RankProcess) -> None:
        """Restore the labels of a process from the checkpoint; a label in use moves to this process."""
        self._holders.update(dict.fromkeys(process.labels, process))

    def holder(self, label: RankLabel) -> RankProcess | None:
        """Return the process that holds ``label``."""
        return self._holders.get(label)

    def holds(self, process: RankProcess, label: RankLabel) -> bool:
        """Return True while ``process`` holds ``label``."""
        return self._holders.get(label) is process

    def label_of(self, process: RankProcess) -> RankLabel | None:
        """Return the first label that the process still holds; None once restarted ranks took all its labels."""
        return next((label for label in process.labels if self.holds(process, label)), None)
