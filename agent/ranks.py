"""The rank table: which processes are ranks, which rank each is, and what became of it.

Owned by the event loop: every method is called there. Sources write evidence; the table alone makes labels. A binding
(process -> job and rank) is frozen when it is published, for the life of the process: later contradictions are counted
and never change a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agent import claims
from agent.clock import Clock
from agent.identity import UNKNOWN_RANK, Membership, Origin, ProcessKey, RankLabel
from agent.origins import OriginBook, OriginRecord
from agent.procfs import ProcessFacts
from agent.rank_labels import LabelBook
from agent.rank_process import RankProcess
from agent.verdict import ExitStatus, judge_job

MAX_PROCESSES = 1024
MAX_MEMBERSHIPS = 256
SETTLE_SECONDS = 1.0
"""How long a claim read from the environment waits for siblings that claim the same rank."""
BINDING_SECONDS = 10.0
"""How long a binding waits for the world communicator, or for another holder of the same label to go."""
TOMBSTONE_SECONDS = 900.0
FINISHED_SECONDS = 60.0
FUTURE_SLACK_SECONDS = 2.0


class RankView(msgspec.Struct, frozen=True):
    """One rank as published: its label and process, frozen at the time of the snapshot."""

    label: RankLabel
    slot: int
    process: RankProcess
    bus_bandwidth_bytes_per_second: float | None = None


class RankSnapshot(msgspec.Struct, frozen=True):
    """What ``rank_families`` renders."""

    ranks: tuple[RankView, ...]
    conflicts: int
    duplicates: int
    refused: int
    unidentified: int
    unreadable: int


class _Saved(msgspec.Struct):
    """The table's section of the checkpoint."""

    processes: list[RankProcess]
    origins: list[tuple[Origin, OriginRecord]]
    conflicts: int
    saved_at: float = 0.0


class RankTable:
    """See the module. ``settle_at_once``: bind without waiting (a single pass over recorded data)."""

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool = False) -> None:
        self._clock = clock
        self._hostname = hostname
        self._settle_at_once = settle_at_once
        self._processes: dict[ProcessKey, RankProcess] = {}
        self._origins = OriginBook()
        self._labels = LabelBook()
        self._conflicts = 0
        self._refused = 0
        self._duplicates: set[ProcessKey | Origin] = set()
        self.held_files: frozenset[tuple[int, int]] = frozenset()
        self.hostnames: frozenset[str] = frozenset({hostname})
        self.revision = 0
        self._bandwidths: dict[RankLabel, float] = {}

    # -- evidence of processes -------------------------------------------------------------------------------------

    def observe_process(self, facts: ProcessFacts) -> bool:
        """Add a rank process, if need be in the place of the oldest tombstone; False when all in the table run."""
        now = self._clock.monotonic()
        if facts.key in self._processes:
            return True
        if len(self._processes) >= MAX_PROCESSES and not self._drop_oldest_tombstone():
            self._refused += 1
            return False
        # A loopback address is one place per network namespace: each pod has its own 127.0.0.1.
        place = f"{self._hostname}/{facts.network_namespace}" if facts.network_namespace else self._hostname
        claim = claims.read_claim(facts.environment or {}, place)
        kept = msgspec.structs.replace(facts, environment=None if facts.environment is None else {})
        self._processes[facts.key] = RankProcess(found_at=now, facts=kept, claim=claim)
        self.revision += 1
        return True

    def observe_state(
        self,
        key: ProcessKey,
        state: str,
        blocked_since: float | None,
        kill_pending: bool,
        finalized: bool,
    ) -> None:
        """Note how a rank process stands: the kernel's letter, since when it is blocked, and what was seen of it."""
        process = self._processes.get(key)
        if process is None or process.exited_at is not None:
            return
        process.state, process.blocked_since, process.kill_pending = state, blocked_since, kill_pending
        process.finalized = finalized

    def observe_exit(self, key: ProcessKey, status: ExitStatus | None) -> None:
        """Note that a process is gone; called again when its status is learnt. Judges its job at once."""
        process = self._processes.get(key)
        if process is None:
            return
        if process.exited_at is None:
            process.exited_at = self._clock.monotonic()
            process.exited_seconds = self._clock.time()
            process.confirmed = True
            if process.slots is None:
                self._bind(process, key)
        if status is not None and status.known:
            process.exit = status
        self.revision += 1
        self._judge()

    def confirm(self, key: ProcessKey) -> None:
        """Say that a process kept from before a restart of the agent still runs."""
        process = self._processes.get(key)
        if process is not None and process.exited_at is None:
            process.confirmed, process.unproven_since = True, None

    def lose_sight(self) -> None:
        """Say that nobody looks at processes any more: those that run are not shown until they are confirmed."""
        now = self._clock.monotonic()
        for process in self.processes().values():
            process.confirmed = False
            process.unproven_since = now if process.unproven_since is None else process.unproven_since

    def environment_readable(self, key: ProcessKey) -> bool:
        """True when the process' environment could be read: the right that also shows its exit status."""
        process = self._processes.get(key)
        return process is not None and process.facts is not None and process.facts.environment is not None

    def processes(self) -> dict[ProcessKey, RankProcess]:
        """The rank processes that run, as far as is known."""
        return {key: process for key, process in self._processes.items() if process.exited_at is None}

    # -- evidence of records ---------------------------------------------------------------------------------------

    def observe_records(
        self, origin: Origin, memberships: Iterable[Membership], last_progress_seconds: float | None
    ) -> None:
        """Note what records of ``origin`` say: new memberships, and the time (epoch) of the newest record."""
        now = self._clock.monotonic()
        record = self._origins.see(origin, now)
        if record is None:
            self._refused += 1
            return
        process = self._process_of(record)
        if process is None:
            return
        for membership in memberships:
            self._add_member(process, membership, now)
        if last_progress_seconds is not None:
            newest = min(last_progress_seconds, self._clock.time() + FUTURE_SLACK_SECONDS)
            process.progress_seconds = max(process.progress_seconds or 0.0, newest)

    def observe_bandwidths(self, bandwidths: dict[RankLabel, float]) -> None:
        """Take the ranks' bus bandwidths of the moment, in bytes per second, for the tables people read."""
        self._bandwidths = bandwidths

    def unlinked_origins(self) -> tuple[Origin, ...]:
        """Writers whose process is not known yet, while it is worth looking for."""
        return self._origins.unlinked(self._clock.monotonic())

    def link(self, origin: Origin, key: ProcessKey) -> None:
        """Say that ``origin`` was written by process ``key``: what was learnt of the one belongs to the other."""
        record, process = self._origins.records.get(origin), self._processes.get(key)
        if record is None or process is None or record.process is not None:
            return
        unseen, record.process, record.unseen = record.unseen, key, None
        self.hostnames |= {origin.hostname}
        if unseen is None:
            return
        for membership in unseen.members.values():
            self._add_member(process, membership, unseen.seen_at[membership.comm])
        if unseen.progress_seconds is not None:
            process.progress_seconds = max(process.progress_seconds or 0.0, unseen.progress_seconds)
        for label in unseen.slots or ():
            self._conflicts += process.slots is not None and label not in process.slots
        self._labels.release(unseen)

    # -- answers ---------------------------------------------------------------------------------------------------

    def label(self, origin: Origin, comm: str, comm_rank: int) -> RankLabel | None:
        """The frozen label of one rank of a writer; None while it is not published."""
        record = self._origins.records.get(origin)
        process = None if record is None else self._process_of(record)
        return None if process is None else self.label_in(process, comm, comm_rank)

    def label_in(self, process: RankProcess, comm: str, comm_rank: int) -> RankLabel | None:
        """The frozen label of one rank of ``process``, told by its rank in a communicator."""
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

    def is_expired(self, origin: Origin) -> bool:
        """True when the series of a writer must go: its rank's tombstone was taken down."""
        return self._origins.is_expired(origin)

    def snapshot(self) -> RankSnapshot:
        """Copy what the render thread needs."""
        ranks = []
        unidentified = unreadable = 0
        for process in self._processes.values():
            if process.slots is None:
                unidentified += process.exited_at is None
            if process.facts is not None and process.facts.environment is None and process.exited_at is None:
                unreadable += 1
            if not process.confirmed or not process.slots:
                continue
            frozen = msgspec.structs.replace(process, members=dict(process.members))
            for slot, label in enumerate(process.slots):
                if label is not None and self._labels.holds(process, label):
                    ranks.append(RankView(label, slot, frozen, self._bandwidths.get(label)))
        ranks.sort(key=lambda view: (view.label.job_id, len(view.label.rank), view.label.rank))
        return RankSnapshot(
            tuple(ranks), self._conflicts, len(self._duplicates), self._refused, unidentified, unreadable
        )

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Publish bindings that are due, judge every job, and take down old tombstones. Called at 1 Hz."""
        now = self._clock.monotonic()
        claimed: Counter[tuple[str, str, int | None]] = Counter(
            (p.claim.job_id, p.claim.group, p.claim.rank)
            for p in self._processes.values()
            if p.exited_at is None and p.claim.rank is not None
        )
        for key, process in self._processes.items():
            if process.slots is None or key in self._duplicates:
                self._bind_when_due(process, key, now, claimed)
        for origin, record in self._origins.records.items():
            if record.unseen is not None and record.unseen.slots is None:
                self._bind_when_due(record.unseen, origin, now, claimed)
        self._judge()
        self._expire(now)

    def _bind_when_due(
        self, process: RankProcess, name: ProcessKey | Origin, now: float, claimed: Counter[tuple[str, str, int | None]]
    ) -> None:
        waited = now - process.found_at
        claim, world = process.claim, process.world()
        unique = claimed[(claim.job_id, claim.group, claim.rank)] <= 1
        if (
            self._settle_at_once
            or waited >= BINDING_SECONDS
            or (claim.rank is not None and unique and waited >= SETTLE_SECONDS and (claim.job_id or world is not None))
            or (world is not None and world.size == claim.world_size)
        ):
            self._bind(process, name, unique)

    def _bind(self, process: RankProcess, name: ProcessKey | Origin, unique: bool = True) -> None:
        """Freeze the labels of a process; without any word on its rank it stays unidentified."""
        if any(process.slots or ()):
            return
        ranks, source = process.ranks(unique)
        if not ranks:
            return
        world = process.world()
        job_id = process.claim.job_id or (claims.communicator_job_id(world.comm) if world else "")
        if not job_id:
            job_id = claims.short_hash("job", self._hostname)
        waited = self._clock.monotonic() - process.found_at >= BINDING_SECONDS
        slots = [self._labels.take(RankLabel(job_id, str(rank)), process, may_regroup=waited) for rank in ranks]
        if None in slots:
            if not waited and process.exited_at is None and not self._settle_at_once:
                self._labels.release(process, slots)
                return
            self._duplicates.add(name)
        else:
            self._duplicates.discard(name)
        process.slots, process.source = slots, source
        self.revision += 1

    def _judge(self) -> None:
        now = self._clock.monotonic()
        jobs: dict[str, list[tuple[ProcessKey, RankProcess]]] = {}
        for key, process in self._processes.items():
            if label := self._labels.held(process):
                jobs.setdefault(label.job_id, []).append((key, process))
        for members in jobs.values():
            verdicts = judge_job([process.evidence(key) for key, process in members], now)
            for key, process in members:
                process.verdict = verdicts[key]

    def _expire(self, now: float) -> None:
        gone = [key for key, process in self._processes.items() if self._is_over(process, now)]
        for key in gone:
            self._drop(key)
        for origin, unseen in self._origins.expire(now, self._processes):
            self._duplicates.discard(origin)
            if unseen is not None:
                self._labels.release(unseen)
        self._name_hosts()

    def _drop(self, key: ProcessKey) -> None:
        process = self._processes.pop(key)
        self._duplicates.discard(key)
        self._labels.release(process)
        self.revision += 1

    def _drop_oldest_tombstone(self) -> bool:
        left = [(process.exited_at, key) for key, process in self._processes.items() if process.exited_at is not None]
        if left:
            self._drop(min(left)[1])
        return bool(left)

    def _name_hosts(self) -> None:
        """This node's host name and those of its containers: a name may move to another node with its pod."""
        linked = self._origins.hostnames(self._processes)
        self.hostnames = frozenset({self._hostname, *linked})

    def _is_over(self, process: RankProcess, now: float) -> bool:
        if process.exited_at is None:
            return False
        superseded = self._labels.held(process) is None  # never bound, or a new incarnation took its labels
        finished = superseded or (process.verdict is not None and process.verdict.state == "finished")
        return now - process.exited_at > (FINISHED_SECONDS if finished else TOMBSTONE_SECONDS)

    # -- the checkpoint --------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Encode the table for the checkpoint."""
        return msgspec.msgpack.encode(
            _Saved(
                list(self._processes.values()),
                list(self._origins.records.items()),
                self._conflicts,
                self._clock.monotonic(),
            )
        )

    def load(self, section: bytes) -> None:
        """Take back what ``dump`` gave earlier in this boot; raises ValueError when it cannot be read.

        Processes count as unconfirmed, and are not shown, until they are observed or found gone.
        """
        saved = msgspec.msgpack.decode(section, type=_Saved)
        self._conflicts = saved.conflicts
        for process in saved.processes:
            if process.facts is None:
                continue
            process.confirmed = process.exited_at is not None
            if process.exited_at is None and process.unproven_since is None:
                process.unproven_since = saved.saved_at
            self._processes[process.facts.key] = process
        for origin, record in saved.origins:
            self._origins.records[origin] = record
        for process in sorted(self._all(), key=lambda p: p.exited_at is None):  # live ones last: they hold the label
            self._labels.restore(process)
        self._duplicates = {key for key, process in self._processes.items() if None in (process.slots or ())}
        self._name_hosts()
        self._judge()

    def _all(self) -> list[RankProcess]:
        unseen = [record.unseen for record in self._origins.records.values() if record.unseen is not None]
        return [*self._processes.values(), *unseen]

    def _process_of(self, record: OriginRecord) -> RankProcess | None:
        return self._processes.get(record.process) if record.process is not None else record.unseen

    def _add_member(self, process: RankProcess, membership: Membership, now: float) -> None:
        place = (membership.comm, membership.comm_rank)
        if place in process.members:
            return
        if len(process.members) >= MAX_MEMBERSHIPS:
            self._refused += 1
            return
        process.members[place] = membership
        process.seen_at.setdefault(membership.comm, now)
        self._conflicts += process.contradicts(membership)
