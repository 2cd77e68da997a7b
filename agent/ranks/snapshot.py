"""Immutable copies of the ranks, for the render thread, the pages and exporters. Pure."""

from collections.abc import Container, Iterable, Mapping, Set as AbstractSet
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import msgspec

from agent.core.identity import UNKNOWN_RANK, Membership, ProcessKey, RankLabel
from agent.ranks.liveness.job_liveness import JobLiveness
from agent.ranks.naming.labels import LabelHolders
from agent.ranks.rank.facts import UNSEEN, ProcessFacts
from agent.ranks.rank.process import RankGpu, RankProcess

HOSTNAME = "HOSTNAME"
"""The variable with a container's host name. A scheduler can copy the variable from another node."""


class PublishedProcess(RankProcess, frozen=True):  # type: ignore[misc]  # msgspec allows this and refuses assignments
    """An immutable copy of a rank process."""

    facts: ProcessFacts = UNSEEN


class RankView(msgspec.Struct, frozen=True):
    """One published rank: its label and its process."""

    label: RankLabel
    slot: int
    process: PublishedProcess

    @property
    def uid(self) -> int | None:
        """Return the uid of the rank's process; None if unknown."""
        return self.process.facts.uid

    @property
    def pid(self) -> int:
        """Return the pid of the rank's process."""
        return self.process.facts.key.pid

    def gpus(self) -> tuple[RankGpu, ...]:
        """Return the rank's GPUs. If a process has several ranks and one GPU for each, every rank has its own GPU."""
        gpus, slots = self.process.gpus, self.process.slots or ()
        return (gpus[self.slot],) if len(gpus) == len(slots) > 1 else gpus

    def memberships(self) -> list[Membership]:
        """Return the rank's memberships in communicators, as far as it is known which rank of the process has them."""
        members, count = self.process.members, len(self.process.slots or ())
        if count == 1:
            return list(members.values())
        groups = (list(group) for _, group in groupby(sorted(members), key=itemgetter(0)))
        return [members[group[self.slot]] for group in groups if len(group) == count]


class RankSnapshot(msgspec.Struct, frozen=True, dict=True):
    """A copy of the rank table, valid until the next change. ``ranks``: running and ended ranks, by job and rank.

    ``running``: all running rank processes, including processes without a label and processes that were not seen since
    the agent's restart. ``taken_seconds`` (since the epoch), ``taken_at`` (since the boot): when the copy was made.
    Ages are relative to this time. ``jobs``: the JobLiveness of each job, by job id. ``without_nccl``: processes with a
    rank's environment that have not loaded NCCL. ``read_otherwise``: processes that need no records. ``held_files``:
    record files that processes on this node hold open, by device and inode. ``hostnames``: host names of this node and
    of its containers with ranks, each with the users who use it (none: everyone). ``renamed``: job ids that moved to a
    proven owner, oldest first.
    """

    ranks: tuple[RankView, ...] = ()
    running: Mapping[ProcessKey, PublishedProcess] = {}
    duplicates: int = 0
    refused: int = 0
    unidentified: int = 0
    unreadable: int = 0
    taken_seconds: float = 0.0
    taken_at: float = 0.0
    jobs: Mapping[str, JobLiveness] = {}
    without_nccl: int = 0
    read_otherwise: frozenset[ProcessKey] = frozenset()
    held_files: Mapping[tuple[int, int], str] = {}
    hostnames: Mapping[str, frozenset[int | None]] = {}
    renamed: tuple[str, ...] = ()

    @cached_property
    def job_ids(self) -> frozenset[str]:
        """Return the ids of local jobs, without jobs of an unknown user."""
        return frozenset(job_id for jobs in self._names.values() for job_id in jobs)

    def hostnames_of(self, uids: Container[int | None]) -> frozenset[str]:
        """Return this node's host names for these users: a name in records counts only for the user who wrote it."""
        return frozenset(name for name, users in self.hostnames.items() if not users or any(u in uids for u in users))

    def job_of(self, uid: int, named: str | None) -> str:
        """Return the job id for a file of user ``uid``; ``named``: the job id in the file's name, if any.

        A file belongs only to jobs of its own user. The result is empty if the user has no such job on this node, or
        has several jobs and the file's name has no job id. If the name fits several jobs, the smallest id is used.
        """
        jobs = self._names.get(uid, {})
        if named is None:
            return next(iter(jobs)) if len(jobs) == 1 else ""
        return min((job_id for job_id, names in jobs.items() if named in names), default="")

    @cached_property
    def _names(self) -> Mapping[int, Mapping[str, AbstractSet[str]]]:
        """Return for each user and job the names of the job: its label, and its ids without the suffix for an owner."""
        users: dict[int, dict[str, set[str]]] = {}
        for view in self.ranks:
            process = view.process
            if view.uid is not None:
                names = users.setdefault(view.uid, {}).setdefault(view.label.job_id, set())
                ids = {view.label.job_id, process.plain_job_id, process.claim.job_id, process.owner.job_id}
                names.update(ids - {""})
        return users


def local_ranks(views: Iterable[RankView], hostnames: frozenset[str]) -> dict[tuple[str, str], str]:
    """Return a job's newest rank by host name and local rank; UNKNOWN_RANK if ranks of two launchers overlap in time.

    The host name is the rank's variable HOSTNAME if ``hostnames`` contains this name; else it is empty, for any host.
    """
    places: dict[tuple[str, str], list[RankView]] = {}
    for view in views:
        host = (view.process.facts.environment or {}).get(HOSTNAME, "")
        places.setdefault((host if host in hostnames else "", view.process.local_rank), []).append(view)
    return {place: _newest_rank(views) for place, views in places.items()}


def _newest_rank(views: list[RankView]) -> str:
    newest = max(views, key=lambda view: view.process.facts.start_seconds)
    since, launcher = newest.process.facts.start_seconds, newest.process.facts.parent_pid
    others = [view.process for view in views if view.process.facts.parent_pid != launcher]
    is_shared = any(other.exited_at is None or other.exited_seconds > since for other in others)
    return UNKNOWN_RANK if is_shared or len(newest.process.slots or ()) != 1 else newest.label.rank


def published(process: RankProcess) -> PublishedProcess:
    """Return an immutable copy of a process of the table."""
    slots = None if process.slots is None else list(process.slots)
    members, seen_at = dict(process.members), dict(process.seen_at)
    copied = msgspec.structs.replace(process, slots=slots, members=members, seen_at=seen_at)
    return PublishedProcess(*msgspec.structs.astuple(copied))  # takes a tenth of the time of keyword arguments


def views_of(
    processes: Mapping[ProcessKey, RankProcess], labels: LabelHolders
) -> tuple[tuple[RankView, ...], Mapping[ProcessKey, PublishedProcess]]:
    """Return the ranks whose confirmed process holds their label, sorted by job and rank; and copies of all running
    processes, by key."""
    ranks, running = [], {}
    for key, process in processes.items():
        copied = published(process)
        if process.exited_at is None:
            running[key] = copied
        if process.confirmed:
            ranks += [
                RankView(label, slot, copied)
                for slot, label in enumerate(process.slots or ())
                if label is not None and labels.holds(process, label)
            ]
    return tuple(sorted(ranks, key=lambda view: (view.label.job_id, len(view.label.rank), view.label.rank))), running
