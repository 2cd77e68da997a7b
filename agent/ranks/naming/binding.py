"""Decide when, and in which order, processes get labels. A process keeps them until another owner proves the job id."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from agent.core.clock import Clock
from agent.core.identity import UNKNOWN_RANK, ProcessKey, RankLabel, WriterKey
from agent.core.log import Logger
from agent.ranks.naming import job_owners
from agent.ranks.naming.job_owners import JobOwners
from agent.ranks.naming.labels import LabelHolders
from agent.ranks.naming.shared_environment import are_siblings, candidates, coordinates_of
from agent.ranks.rank import environment
from agent.ranks.rank.process import RankProcess

SETTLE_SECONDS = 1.0
"""How long a process waits for siblings that claim the same rank."""
BINDING_SECONDS = 10.0
"""How long a process waits for the world communicator, or for a label that another process holds."""

MAX_RENAMED = 4096
"""Limit of ``renamed`` since the agent's start. If more job ids move, exporters keep the old labels."""
MAX_SIBLINGS = 64
"""Limit of processes that share one environment. Above the limit, only one of the processes gets its label."""

ProcessName = ProcessKey | WriterKey
"""Key of a process in the table; for a process that was never seen, the key of its writer."""
_Group = tuple[str, str, str]
"""The owner, job id and group that a process claims."""
_Claimed = tuple[str, str, str, int | None]
"""The same, and the claimed rank."""


class RankBinder:
    """Gives ``processes`` (all processes of the table) their labels.

    ``duplicates``: processes that did not get all of their labels. ``renamed``: job ids that moved to a proven owner,
    oldest first.
    """

    def __init__(
        self, clock: Clock, hostname: str, settle_at_once: bool, processes: Mapping[ProcessKey, RankProcess]
    ) -> None:
        self._clock = clock
        self._processes = processes
        self._hostname = hostname
        self._settle_at_once = settle_at_once
        self.labels = LabelHolders()
        self.owners = JobOwners()
        self.duplicates: set[ProcessName] = set()
        self.renamed: list[str] = []
        self._steps: dict[str, str] = {}
        self._claimants: dict[_Claimed, list[RankProcess]] = {}
        self._groups: defaultdict[_Group, list[RankProcess]] = defaultdict(list)
        self._apart: dict[_Group, bool] = {}
        self._log = Logger("ranks")

    def bind_due(self, stand_ins: Mapping[WriterKey, RankProcess]) -> None:
        """Assign the labels of each process, or stand-in of an unseen process, once its wait is over."""
        now, processes = self._clock.monotonic(), self._processes
        self._claimants, self._apart = _claimants(processes), {}
        self._groups.clear()
        for claimed, same in self._claimants.items():
            self._groups[claimed[:3]] += same
        self._steps = {shown: step for shown, step in self._steps.items() if shown in self.owners}
        waiting = [key for key, process in processes.items() if process.slots is None or key in self.duplicates]
        waiting.sort(key=lambda key: (key.start_ticks, key.pid))
        due: list[tuple[ProcessName, RankProcess]] = [(key, processes[key]) for key in waiting]
        due += [(writer_key, process) for writer_key, process in stand_ins.items() if process.slots is None]
        for name, process in due:
            if self._is_due(process, now):
                self.bind(process, name)

    def bind(self, process: RankProcess, name: ProcessName) -> None:
        """Assign the labels of a process, unless it has all, has to wait, or no source names its rank.

        If ``process`` proves its job id, processes of other owners lose that id.
        """
        if process.labels:
            self._bind_missing(process, name)
            return
        claimants = self._rivals(process)
        is_over = process.exited_at is not None or self._clock.monotonic() - process.found_at >= BINDING_SECONDS
        may_wait = not is_over and not self._settle_at_once
        siblings = [claimant for claimant in claimants if are_siblings(process, claimant)]
        ranks, source = process.ranks(unique=len(claimants) <= 1)
        if 1 < len(siblings) <= MAX_SIBLINGS and source == "environment":
            if not may_wait:
                self._bind_sibling(process, name, siblings)
            return
        if not ranks and is_over:
            ranks, source = process.pid_rank(), "pid"
        if not ranks:
            return
        job_id = self._job_id(process)
        if self._is_apart(process, job_id, ranks):
            if may_wait:
                return
            job_id = environment.group_job_id(job_id, process.claim.group)
        slots = [self.labels.take(RankLabel(job_id, rank), process) for rank in ranks]
        if None in slots:
            if may_wait:
                self.labels.release(process, slots)
                return
            self.duplicates.add(name)
        else:
            self.duplicates.discard(name)
        process.slots, process.source = slots, source

    def label(self, process: RankProcess, comm: str, comm_rank: int) -> RankLabel | None:
        """Return the label of rank ``comm_rank`` of ``comm``; None while it is unknown, UNKNOWN_RANK after a wait."""
        if not process.slots:
            return None
        if (slot := process.slot_of(comm, comm_rank)) is not None:
            return process.slots[slot]
        waited = self._clock.monotonic() - process.seen_at.get(comm, process.found_at)
        first = process.slots[0]
        if first is None or (waited < BINDING_SECONDS and process.exited_at is None and not self._settle_at_once):
            return None
        return RankLabel(first.job_id, UNKNOWN_RANK)

    def release(self, name: ProcessName, process: RankProcess | None) -> None:
        """Free the labels of a process that was removed from the table."""
        self.duplicates.discard(name)
        if process is not None:
            self.labels.release(process)

    def restore(self, stand_ins: Mapping[WriterKey, RankProcess]) -> None:
        """Restore the labels of the processes from the checkpoint."""
        restored = [*self._processes.values(), *stand_ins.values()]
        # If several processes have one label, the last in this order holds it: never seen, ended, live.
        for process in sorted(restored, key=lambda p: (p.facts is not None, p.exited_at is None)):
            self.labels.restore(process)
        self.owners.restore(restored)
        for process in self._processes.values():
            if any(label.job_id == process.shown_job_id for label in process.labels):
                self._steps[process.shown_job_id] = process.claim.group
        self.duplicates = {key for key, process in self._processes.items() if None in (process.slots or ())}

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
                and not coordinates_of(process.seen.title)  # the siblings of a titled worker can start later
                and waited >= SETTLE_SECONDS
                and (bool(claim.job_id) or world is not None)
            )
            or (world is not None and world.size == claim.world_size)
        )

    def _rivals(self, process: RankProcess) -> list[RankProcess]:
        """Return ``process``, and the other processes that claim the same rank and live at the same time."""
        others = [p for p in self._claimants.get(_claimed(process), []) if p is not process]
        return [process, *(p for p in others if p.exited_at is None or p.exited_at > process.found_at)]

    def _bind_missing(self, process: RankProcess, name: ProcessName) -> None:
        """Take the labels that another process held when ``process``, which has several ranks, got its other labels."""
        ranks, _ = process.ranks(unique=True)
        slots = process.slots or []
        if process.exited_at is None and None in slots and len(ranks) == len(slots):
            job_id = process.labels[0].job_id
            labels = [slot or RankLabel(job_id, rank) for slot, rank in zip(slots, ranks, strict=True)]
            process.slots = [self.labels.take(label, process) for label in labels]
            if None not in process.slots:
                self.duplicates.discard(name)

    def _bind_sibling(self, process: RankProcess, name: ProcessName, siblings: Sequence[RankProcess]) -> None:
        """Bind ``process``, which shares its task's environment, to the first free candidate rank."""
        job_id, choices = self._job_id(process), list(candidates(process, siblings))
        if self._is_apart(process, job_id, [rank for rank, _ in choices]):
            job_id = environment.group_job_id(job_id, process.claim.group)
        for rank, source in choices:
            label = RankLabel(job_id, rank)
            is_taken = any(self.labels.holds(sibling, label) for sibling in siblings)
            if not is_taken and self.labels.take(label, process):
                process.slots, process.source = [label], source
                self.duplicates.discard(name)
                return

    def _job_id(self, process: RankProcess) -> str:
        """Return the job id shown for this process. If the process proves the id, processes of other owners lose it."""
        had_job_id = bool(process.shown_job_id)
        plain = process.plain_job_id = job_owners.plain_id(process, self._unnamed_job_id(process))
        process.shown_job_id, was_taken = self.owners.assign(plain, process, self._processes.values())
        if was_taken:
            self._rename_others(process)
        if process.shown_job_id != plain and not had_job_id:
            self._log_owner(process)
        return self._step_id(process)

    def _step_id(self, process: RankProcess) -> str:
        """Return the job's id, followed by a hash of this step while an earlier step of the job runs on this node."""
        shown, step = process.shown_job_id, process.claim.group
        if not step.startswith(environment.STEP):
            return shown
        first = self._steps.setdefault(shown, step)
        if first == step:
            return shown
        members = (p for p in self._processes.values() if (p.shown_job_id, p.claim.group) == (shown, first))
        if any(member.exited_at is None for member in members):
            return environment.group_job_id(shown, step)
        self._steps[shown] = step
        return shown

    def _is_apart(self, process: RankProcess, job_id: str, ranks: Sequence[str]) -> bool:
        """Return True if the process' group needs an id of its own: another group holds one of its ranks in ``job_id``.

        Such groups are replicas (vLLM) or several trainings in one allocation. All ranks of a group have the same id.
        """
        group, key = process.claim.group, _claimed(process)[:3]
        if not group:
            return False
        if key not in self._apart:
            members, own_id = self._groups.get(key, []), environment.group_job_id(job_id, group)
            ids = {label.job_id for member in members for label in member.labels}
            rivals = self._rivals_in(job_id, group, {str(member.claim.rank) for member in members})
            has_own_id = own_id in ids and job_id not in ids
            self._apart[key] = has_own_id or not all(rival.kill_pending for rival in rivals)
        return self._apart[key] or bool(self._rivals_in(job_id, group, ranks))

    def _rivals_in(self, job_id: str, group: str, ranks: Collection[str]) -> list[RankProcess]:
        """Return the running processes of other groups that hold these ranks of a job."""
        holders = [self.labels.holder(RankLabel(job_id, rank)) for rank in ranks]
        running = [holder for holder in holders if holder and holder.facts is not None and holder.exited_at is None]
        return [holder for holder in running if holder.claim.group != group]

    def _unnamed_job_id(self, process: RankProcess) -> str:
        """Return an id for an unnamed job: a hash of the world communicator, else of the host or of host and owner."""
        world, facts = process.world(), process.facts
        if world is not None:
            return environment.job_hash(world.comm)
        if facts is None or process.claim.rank is not None:
            return environment.job_hash(self._hostname)
        session = facts.session if process.owner.kind == "user" else 0
        return environment.job_hash(f"{self._hostname}/{process.owner.key}/{session}")

    def _log_owner(self, process: RankProcess) -> None:
        claim, user = process.plain_job_id, process.user
        message = "a process of {user} claims job {claim} of another owner: the process is shown as {job_id}"
        self._log.warning(message, user=user, claim=claim, job_id=process.shown_job_id)

    def _rename_others(self, process: RankProcess) -> None:
        if len(self.renamed) < MAX_RENAMED:
            self.renamed.append(process.plain_job_id)
        plain = process.plain_job_id
        for other in self._processes.values():
            has_plain = other.plain_job_id == other.shown_job_id == plain and other is not process
            if not has_plain or job_owners.party(other) == job_owners.party(process):
                continue
            self.labels.release(other)
            shown, _ = self.owners.assign(plain, other, ())
            slots = other.slots or ()  # the hash of a group stays at the end of the job's id
            labels = [label and RankLabel(shown + label.job_id.removeprefix(plain), label.rank) for label in slots]
            other.slots = [label and self.labels.take(label, other) for label in labels] or None
            if None in (other.slots or ()):
                self.duplicates.add(other.key)
            other.shown_job_id = shown
            self._log_owner(other)


def _claimed(process: RankProcess) -> _Claimed:
    claim = process.claim
    return process.owner.key, claim.job_id, claim.group, claim.rank


def _claimants(processes: Mapping[ProcessKey, RankProcess]) -> dict[_Claimed, list[RankProcess]]:
    """Return the processes by claimed rank, at most MAX_SIBLINGS + 1 per rank: more would change nothing."""
    claimants: defaultdict[_Claimed, list[RankProcess]] = defaultdict(list)
    for process in processes.values():
        if process.claim.rank is not None and len(same := claimants[_claimed(process)]) <= MAX_SIBLINGS:
            same.append(process)
    return claimants
