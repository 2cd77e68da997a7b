"""The rank table: which processes are ranks, which rank each is, and what became of it.

Owned by the event loop: every method is called there. Sources write evidence; the table alone makes labels. A binding
(process -> job and rank) is frozen when it is published, for the life of the process: later contradictions are counted
and never change a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import Membership, ProcessKey, RankLabel, WriterKey
from agent.hardware.inventory import Hardware
from agent.ranks import checkpoint, environment, expiry
from agent.ranks.binding import RankBinder
from agent.ranks.checkpoint import SavedTable
from agent.ranks.process import RankGpu, RankProcess
from agent.ranks.snapshot import RankSnapshot, RankView
from agent.ranks.verdict import ExitStatus, RasSilence, judge_job
from agent.ranks.writers import WriterBook, WriterRecord
from agent.system.procfs import ProcessFacts

MAX_PROCESSES = 1024
MAX_MEMBERSHIPS = 256
FUTURE_SLACK_SECONDS = 2.0
UNSEEN_SECONDS = 5.0
"""For so long a process that nobody looks at any more counts as running: a reload takes less."""


class RankTable:
    """See the module. ``settle_at_once``: bind without waiting (a single pass over recorded data)."""

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool = False) -> None:
        self._clock = clock
        self._hostname = hostname
        self._processes: dict[ProcessKey, RankProcess] = {}
        self._writers = WriterBook()
        self._binder = RankBinder(clock, hostname, settle_at_once)
        self._conflicts = 0
        self._refused = 0
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
        claim = environment.read_claim(facts.environment or {}, place)
        settings = None if facts.environment is None else environment.recording_settings(facts.environment)
        kept = msgspec.structs.replace(facts, environment=settings)
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

    def observe_silences(self, silences: Mapping[ProcessKey, RasSilence]) -> None:
        """Take what RAS misses of the processes here, in the place of what it missed before."""
        for key, process in self._processes.items():
            process.silence = silences.get(key) if process.exited_at is None else None

    def observe_gpus(self, hardware: Hardware) -> None:
        """Note which GPUs the processes use; what one used before it left, or before the driver fell silent, stays.

        So does one that was lost, which tells of no process, though the process uses others as well.
        """
        for key, process in self.processes().items():
            if found := hardware.gpus_of(key.pid):
                gpus = {gpu.uuid: gpu for gpu in process.gpus if hardware.is_unseen(gpu.uuid)}
                for gpu in found:
                    gpus[gpu.uuid] = RankGpu(gpu.index, gpu.uuid, gpu.pci, hardware.nic_of(gpu))
                process.gpus = tuple(sorted(gpus.values(), key=lambda gpu: gpu.index))

    def observe_memberships(self, key: ProcessKey, memberships: Iterable[Membership]) -> None:
        """Note which places a process of the table has in communicators, told by anything but its own records."""
        process = self._processes.get(key)
        if process is None:
            return
        for membership in memberships:
            self._add_member(process, membership, self._clock.monotonic())

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
                self.revision += self._binder.bind(process, key)
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
        """Say that nobody looks at processes: those that run are shown a moment longer, then not until confirmed.

        A reload looks again at once, and must not make a rank vanish meanwhile.
        """
        now = self._clock.monotonic()
        for process in self.processes().values():
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
        self, writer_key: WriterKey, memberships: Iterable[Membership], last_progress_seconds: float | None
    ) -> None:
        """Note what records of ``writer_key`` say: new memberships, and the time (epoch) of the newest record."""
        now = self._clock.monotonic()
        record = self._writers.see(writer_key, now)
        if record is None:
            self._refused += 1
            return
        process = self._process_of(record)
        if process is None:
            return
        if record.process is None and last_progress_seconds is not None:
            self._link_former(writer_key, last_progress_seconds)
            process = self._process_of(record) or process
        for membership in memberships:
            self._add_member(process, membership, now)
        if last_progress_seconds is not None:
            newest = min(last_progress_seconds, self._clock.time() + FUTURE_SLACK_SECONDS)
            process.progress_seconds = max(process.progress_seconds or 0.0, newest)

    def _link_former(self, writer_key: WriterKey, last_progress_seconds: float) -> None:
        """A process that began its file anew just before it left: nobody holds the file, but the records are its."""
        key = self._writers.former(writer_key)
        process = None if key is None else self._processes.get(key)
        if key is None or process is None or process.exited_at is None:
            return
        if last_progress_seconds <= process.exited_seconds:
            self.link(writer_key, key)

    def observe_bandwidths(self, bandwidths: dict[RankLabel, float]) -> None:
        """Take the ranks' bus bandwidths of the moment, in bytes per second, for the tables people read."""
        self._bandwidths = bandwidths

    def unlinked_writers(self) -> tuple[WriterKey, ...]:
        """Writers whose process is not known yet, while it is worth looking for."""
        return self._writers.unlinked(self._clock.monotonic())

    def link(self, writer_key: WriterKey, key: ProcessKey) -> None:
        """Say that ``writer_key`` was written by process ``key``: what was learnt of the one belongs to the other."""
        record, process = self._writers.records.get(writer_key), self._processes.get(key)
        if record is None or process is None or record.process is not None:
            return
        unseen, record.process, record.unseen = record.unseen, key, None
        self.hostnames |= {writer_key.hostname}
        if unseen is None:
            return
        for membership in unseen.members.values():
            self._add_member(process, membership, unseen.seen_at[membership.comm])
        if unseen.progress_seconds is not None:
            process.progress_seconds = max(process.progress_seconds or 0.0, unseen.progress_seconds)
        for label in unseen.slots or ():
            self._conflicts += process.slots is not None and label not in process.slots
        self._binder.labels.release(unseen)

    def without_records(self, seconds: float) -> list[ProcessFacts]:
        """Processes that were there for so long, run, and of which no record was seen."""
        latest = self._clock.monotonic() - seconds
        return [
            process.facts
            for process in self.processes().values()
            if process.facts is not None
            and process.confirmed
            and process.found_at <= latest
            and process.progress_seconds is None
        ]

    # -- answers ---------------------------------------------------------------------------------------------------

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """The frozen label of one rank of a writer; None while it is not published."""
        record = self._writers.records.get(writer_key)
        process = None if record is None else self._process_of(record)
        return None if process is None else self._binder.label(process, comm, comm_rank)

    def recording_settings(self, writer_key: WriterKey) -> Mapping[str, str] | None:
        """How the process of a writer was told to write records (RECORDING_VARIABLES); None while that is not known."""
        record = self._writers.records.get(writer_key)
        process = None if record is None else self._process_of(record)
        return None if process is None or process.facts is None else process.facts.environment

    def is_expired(self, writer_key: WriterKey) -> bool:
        """True when the series of a writer must go: its rank's tombstone was taken down."""
        return self._writers.is_expired(writer_key)

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
                if label is not None and self._binder.labels.holds(process, label):
                    ranks.append(RankView(label, slot, frozen, self._bandwidths.get(label)))
        ranks.sort(key=lambda view: (view.label.job_id, len(view.label.rank), view.label.rank))
        return RankSnapshot(
            tuple(ranks), self._conflicts, len(self._binder.duplicates), self._refused, unidentified, unreadable
        )

    # -- the tick --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Publish bindings that are due, judge every job, and take down old expiry. Called at 1 Hz."""
        now = self._clock.monotonic()
        self.revision += self._binder.bind_due(self._processes, self._writers.unseen())
        for process in self.processes().values():
            if process.unproven_since is not None and now - process.unproven_since > UNSEEN_SECONDS:
                process.confirmed = False
        self._judge()
        self._expire(now)

    def _judge(self) -> None:
        now = self._clock.monotonic()
        jobs: dict[str, list[tuple[ProcessKey, RankProcess]]] = {}
        for key, process in self._processes.items():
            if label := self._binder.labels.held(process):
                jobs.setdefault(label.job_id, []).append((key, process))
        for members in jobs.values():
            verdicts = judge_job([process.evidence(key) for key, process in members], now)
            for key, process in members:
                process.verdict = verdicts[key]

    def _expire(self, now: float) -> None:
        held = self._binder.labels.held
        gone = [
            key
            for key, process in self._processes.items()
            if expiry.is_over(process, holds_label=held(process) is not None, now=now)
        ]
        for key in gone:
            self._drop(key)
        for writer_key, unseen in self._writers.expire(now, self._processes):
            self._binder.release(writer_key, unseen)
        self._name_hosts()

    def _drop(self, key: ProcessKey) -> None:
        process = self._processes.pop(key)
        self._binder.release(key, process)
        self.revision += 1

    def _drop_oldest_tombstone(self) -> bool:
        oldest = expiry.oldest(self._processes)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _name_hosts(self) -> None:
        """This node's host name and those of its containers: a name may move to another node with its pod."""
        linked = self._writers.hostnames(self._processes)
        self.hostnames = frozenset({self._hostname, *linked})

    # -- the checkpoint --------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Encode the table for the checkpoint."""
        processes, writer_keys = list(self._processes.values()), list(self._writers.records.items())
        return checkpoint.encode(SavedTable(processes, writer_keys, self._conflicts, self._clock.monotonic()))

    def load(self, section: bytes) -> None:
        """Take back what ``dump`` gave earlier in this boot; raises ValueError when it cannot be read.

        Processes count as unconfirmed, and are not shown, until they are observed or found gone.
        """
        saved = checkpoint.decode(section)
        self._conflicts = saved.conflicts
        self._processes.update((process.facts.key, process) for process in saved.processes if process.facts is not None)
        self._writers.records.update(saved.writer_keys)
        self._binder.restore(self._processes, self._writers.unseen())
        self._name_hosts()
        self._judge()

    def _process_of(self, record: WriterRecord) -> RankProcess | None:
        return self._processes.get(record.process) if record.process is not None else record.unseen

    def _add_member(self, process: RankProcess, membership: Membership, now: float) -> None:
        place = (membership.comm, membership.comm_rank)
        known = process.members.get(place)
        if known is not None:
            if membership.name and not known.name:  # records know more of a communicator than RAS
                process.members[place] = membership
            return
        if len(process.members) >= MAX_MEMBERSHIPS:
            self._refused += 1
            return
        process.members[place] = membership
        process.seen_at.setdefault(membership.comm, now)
        self._conflicts += process.contradicts(membership)
