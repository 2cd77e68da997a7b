"""Which process is which rank: when that is decided, and its labels from then on."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agent.core.clock import Clock
from agent.core.identity import UNKNOWN_RANK, ProcessKey, RankLabel, WriterKey
from agent.core.log import Logger
from agent.ranks.naming import job_owners
from agent.ranks.naming.job_owners import JobOwners
from agent.ranks.naming.labels import LabelBook
from agent.ranks.naming.shared_environment import are_siblings, candidates, place_of
from agent.ranks.rank import environment
from agent.ranks.rank.process import RankProcess

SETTLE_SECONDS = 1.0
"""How long a process whose environment names its rank waits for siblings that claim the same one."""
BINDING_SECONDS = 10.0
"""How long a process waits for the world communicator, or for a label that another one holds."""

MAX_RENAMED = 4096
"""Job ids that others had before their owners, since the agent's start: of more, exporters keep the old labels."""
MAX_SIBLINGS = 64
"""Processes that share one environment: of more, one is shown and the others are duplicates."""

ProcessName = ProcessKey | WriterKey
"""What the table knows a process by; the stand-in for one that was never seen goes by the key of its writer."""
_Claimed = tuple[str, str, str, int | None]
"""An owner, a job, a group and a rank."""


class RankBinder:
    """Gives processes their labels. ``duplicates``: those that did not get all of them.

    ``renamed``: the ids that went over to an owner with a proof, in order.
    """

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool) -> None:
        self._clock = clock
        self._hostname = hostname
        self._settle_at_once = settle_at_once
        self.labels = LabelBook()
        self.owners = JobOwners()
        self.duplicates: set[ProcessName] = set()
        self.renamed: list[str] = []
        self._steps: dict[str, str] = {}
        self._claimants: dict[_Claimed, list[RankProcess]] = {}
        self._log = Logger("ranks")

    def bind_due(self, processes: Mapping[ProcessKey, RankProcess], unseen: Mapping[WriterKey, RankProcess]) -> None:
        """Bind the processes and stand-ins that are due."""
        now = self._clock.monotonic()
        self._claimants = _claimants(processes)
        self._steps = {shown: step for shown, step in self._steps.items() if shown in self.owners}
        waiting = [key for key, process in processes.items() if process.slots is None or key in self.duplicates]
        waiting.sort(key=lambda key: (key.start_ticks, key.pid))
        due: list[tuple[ProcessName, RankProcess]] = [(key, processes[key]) for key in waiting]
        due += [(writer_key, process) for writer_key, process in unseen.items() if process.slots is None]
        for name, process in due:
            if self._is_due(process, now):
                self.bind(process, name, processes)

    def bind(self, process: RankProcess, name: ProcessName, processes: Mapping[ProcessKey, RankProcess]) -> bool:
        """Freeze the labels of a process; False when they are frozen already, or nothing names its rank.

        ``processes``: all; those of another owner may lose their job's id to it.
        """
        if any(process.slots or ()):
            return False
        claimants = self._rivals(process)
        waited = self._clock.monotonic() - process.found_at >= BINDING_SECONDS
        siblings = [claimant for claimant in claimants if are_siblings(process, claimant)]
        ranks, source = process.ranks(unique=len(claimants) <= 1)
        if 1 < len(siblings) <= MAX_SIBLINGS and source == "environment":
            settled = waited or self._settle_at_once or process.exited_at is not None
            return settled and self._bind_sibling(process, name, siblings, processes)
        if not ranks and (waited or process.exited_at is not None):
            ranks, source = process.pid_rank(), "pid"
        if not ranks:
            return False
        job_id = self._job_id(process, processes)
        slots = [self.labels.take(RankLabel(job_id, rank), process, may_regroup=waited) for rank in ranks]
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

    def release(self, name: ProcessName, process: RankProcess | None) -> None:
        """Free the labels of what was removed from the table."""
        self.duplicates.discard(name)
        if process is not None:
            self.labels.release(process)

    def restore(self, processes: Mapping[ProcessKey, RankProcess], unseen: Mapping[WriterKey, RankProcess]) -> None:
        """Give the processes of the checkpoint their labels back."""
        kept = [*processes.values(), *unseen.values()]
        for process in sorted(kept, key=lambda p: p.exited_at is None):  # live ones last: they hold the label
            self.labels.restore(process)
        self.owners.restore(kept)
        for process in processes.values():
            if any(label is not None and label.job_id == process.shown_job_id for label in process.slots or ()):
                self._steps[process.shown_job_id] = process.claim.group
        self.duplicates = {key for key, process in processes.items() if None in (process.slots or ())}

    def _is_due(self, process: RankProcess, now: float) -> bool:
        waited = now - process.found_at
        unique = len(self._rivals(process)) <= 1
        claim, world = process.claim, process.world()
        return (
            self._settle_at_once
            or waited >= BINDING_SECONDS
            or (
                claim.rank is not None
                and unique
                and not _has_place(process)
                and waited >= SETTLE_SECONDS
                and (bool(claim.job_id) or world is not None)
            )
            or (world is not None and world.size == claim.world_size)
        )

    def _rivals(self, process: RankProcess) -> list[RankProcess]:
        """Return the processes that claim the same rank and live at the same time, this one among them."""
        return [
            rival
            for rival in self._claimants.get(_claimed(process), [])
            if rival.exited_at is None or rival.exited_at > process.found_at
        ]

    def _bind_sibling(
        self,
        process: RankProcess,
        name: ProcessName,
        siblings: Sequence[RankProcess],
        processes: Mapping[ProcessKey, RankProcess],
    ) -> bool:
        """Bind a process whose environment names its task's rank: to the first of its names that is free."""
        job_id = self._job_id(process, processes)
        others = {id(sibling) for sibling in siblings if sibling is not process}
        for rank, source in candidates(process, siblings):
            label = RankLabel(job_id, rank)
            if id(self.labels.holder(label)) not in others and self.labels.take(label, process, may_regroup=False):
                process.slots, process.source = [label], source
                self.duplicates.discard(name)
                return True
        return False

    def _job_id(self, process: RankProcess, processes: Mapping[ProcessKey, RankProcess]) -> str:
        """Return the id under which its job is shown; another owner's processes that had it lose it."""
        was_asked = bool(process.shown_job_id)
        plain = process.plain_job_id = job_owners.plain_id(process, self._unnamed_job_id(process))
        process.shown_job_id, taken = self.owners.name(plain, process, processes.values())
        if taken:
            self._rename_others(process, processes)
        if process.shown_job_id != plain and not was_asked:
            self._log_owner(process)
        return self._step_id(process, processes)

    def _step_id(self, process: RankProcess, processes: Mapping[ProcessKey, RankProcess]) -> str:
        """The job's id, with the group's hash for a step that began while another one runs here: all of its ranks."""
        shown, step = process.shown_job_id, process.claim.group
        if not step.startswith(environment.STEP):
            return shown
        first = self._steps.setdefault(shown, step)
        if first == step:
            return shown
        if any(p.exited_at is None and (p.shown_job_id, p.claim.group) == (shown, first) for p in processes.values()):
            return environment.group_job_id(shown, step)
        self._steps[shown] = step
        return shown

    def _unnamed_job_id(self, process: RankProcess) -> str:
        """The id of a job that no variable names: by its world communicator, else by its owner, or a user's session."""
        world, facts = process.world(), process.facts
        if world is not None:
            return environment.communicator_job_id(world.comm)
        if facts is None or process.claim.rank is not None:
            return environment.short_hash("job", self._hostname)
        session = facts.session if process.owner.kind == "user" else 0
        return environment.short_hash("job", f"{self._hostname}/{process.owner.key}/{session}")

    def _log_owner(self, process: RankProcess) -> None:
        claim, user = process.plain_job_id, process.user
        message = "a process of {user} claims job {claim} of another owner: it is shown as {job_id}"
        self._log.warning(message, user=user, claim=claim, job_id=process.shown_job_id)

    def _rename_others(self, process: RankProcess, processes: Mapping[ProcessKey, RankProcess]) -> None:
        if len(self.renamed) < MAX_RENAMED:
            self.renamed.append(process.plain_job_id)
        for other in processes.values():
            is_theirs = other.plain_job_id == process.plain_job_id and other is not process
            if not is_theirs or job_owners.party(other) == job_owners.party(process) or not job_owners.has_plain(other):
                continue
            self.labels.release(other)
            shown, _ = self.owners.name(other.plain_job_id, other, ())
            named = [label and job_owners.renamed(label, shown, other) for label in other.slots or ()]
            other.slots = [label and self.labels.take(label, other, may_regroup=False) for label in named]
            other.shown_job_id = shown
            self._log_owner(other)


def _has_place(process: RankProcess) -> bool:
    """Return True for one of several workers of a task, by its title: the others may come later."""
    return process.facts is not None and bool(place_of(process.facts.title))


def _claimed(process: RankProcess) -> _Claimed:
    claim = process.claim
    return process.owner.key, claim.job_id, claim.group, claim.rank


def _claimants(processes: Mapping[ProcessKey, RankProcess]) -> dict[_Claimed, list[RankProcess]]:
    """Return the processes by the rank that they claim, MAX_SIBLINGS + 1 of each at most: more are duplicates."""
    claimants: defaultdict[_Claimed, list[RankProcess]] = defaultdict(list)
    for process in processes.values():
        if process.claim.rank is not None and len(same := claimants[_claimed(process)]) <= MAX_SIBLINGS:
            same.append(process)
    return claimants
