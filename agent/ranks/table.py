"""The rank table: which processes are ranks, and the number, state and exit of each rank.

Every method runs in the event loop. Exporters add evidence (agent/ranks/writer.py); only the table assigns labels. A
process keeps its labels until another owner proves the job id: contradictions in later records are only logged.
"""

from collections.abc import Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import ProcessKey, RankLabel, WriterKey
from agent.hardware.inventory import Hardware
from agent.ranks import expiry
from agent.ranks.liveness.registry import LivenessRegistry
from agent.ranks.naming.binding import RankBinder
from agent.ranks.rank.environment import KEPT_VARIABLES
from agent.ranks.rank.facts import Owner
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict import judge_job
from agent.ranks.records import LINK_SECONDS, WRITER_IDLE_SECONDS, SavedTable, WriterRecord
from agent.ranks.snapshot import RankSnapshot, views_of
from agent.ranks.speeds import RankSpeeds

UNSEEN_SECONDS = 5.0
"""How long a process that no exporter observes still counts as running: longer than a reload takes."""


class RankTable:
    """The rank table. ``settle_at_once``: assign labels without waiting, for a single pass over recorded data.

    ``job_id_variables``: configured environment variables with the job id, tried before the built-in variables.
    ``variables``: for each exporter the environment variables of rank processes that it needs. ``changed``: jobs with
    exits that are not judged yet.
    """

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool = False) -> None:
        self.clock = clock
        self.hostname = hostname
        self.refused = 0
        self.processes: dict[ProcessKey, RankProcess] = {}
        self.binder = RankBinder(clock, hostname, settle_at_once, self.processes)
        self.writers: dict[WriterKey, WriterRecord] = {}
        self.published: RankSnapshot | None = None
        self.changed: set[str] = set()
        self.variables: dict[str, frozenset[str]] = {}
        self.job_id_variables: tuple[str, ...] = ()
        self.liveness = LivenessRegistry(self.binder.labels)
        self.held_files: Mapping[tuple[int, int], str] = {}
        self.read_otherwise: frozenset[ProcessKey] = frozenset()
        self.without_nccl = 0
        self.speeds = RankSpeeds(clock)

    def kept_variables(self) -> frozenset[str]:
        """Return the variables to read from rank processes: those that name rank and job, or that exporters need."""
        return KEPT_VARIABLES.union(self.job_id_variables, *self.variables.values())

    def observe_gpus(self, hardware: Hardware) -> None:
        """Note which GPUs the processes use; the GPUs of ended processes stay."""
        for key, process in self.running().items():
            process.note_gpus(hardware, key.pid)
        self.published = None

    def running(self) -> dict[ProcessKey, RankProcess]:
        """Return the rank processes without a known exit."""
        return {key: process for key, process in self.processes.items() if process.exited_at is None}

    def snapshot(self) -> RankSnapshot:
        """Return an immutable copy of the table: the same object until the next tick or write."""
        if self.published is None:
            ranks, running = views_of(self.processes, self.binder.labels)
            self.published = RankSnapshot(
                ranks=ranks,
                running=running,
                duplicates=len(self.binder.duplicates),
                refused=self.refused,
                unidentified=sum(p.slots is None and p.is_surely_a_rank() for p in running.values()),
                unreadable=sum(p.facts.environment is None for p in running.values()),
                jobs=self.liveness.snapshot(),
                without_nccl=self.without_nccl,
                read_otherwise=self.read_otherwise,
                held_files=self.held_files,
                hostnames=self._hostnames(),
                renamed=tuple(self.binder.renamed),
            )
        return self.published

    def _hostnames(self) -> dict[str, frozenset[int | None]]:
        users: dict[str, set[int | None]] = {}
        for writer_key, record in self.writers.items():
            if record.process in self.processes:
                users.setdefault(writer_key.hostname, set()).add(record.uid)  # any user can write any name
        return {name: frozenset(uids) for name, uids in users.items()} | {self.hostname: frozenset()}

    def timed_snapshot(self) -> RankSnapshot:
        """Return the snapshot with the current time, from which pages compute ages."""
        return msgspec.structs.replace(
            self.snapshot(), taken_seconds=self.clock.time(), taken_at=self.clock.monotonic()
        )

    def tick(self) -> None:
        """Assign the labels that are due, judge every job, and remove expired records. Called at 1 Hz."""
        now = self.clock.monotonic()
        self.judge_changed()  # first: a restarted rank can take the label of a rank whose exit explains other exits
        self.binder.bind_due(self.stand_ins())
        for process in self.running().values():
            if process.unproven_since is not None and now - process.unproven_since > UNSEEN_SECONDS:
                process.confirmed = False
        self._judge_all()
        self._expire(now)
        self.published = None

    def judge_changed(self) -> None:
        """Judge the jobs with an exit, or a new exit status, since the last verdict."""
        if self.changed:
            jobs = self._jobs()
            self._judge({job_id: jobs[job_id] for job_id in self.changed if job_id in jobs})

    def _judge_all(self) -> None:
        jobs = self._jobs()
        ended: dict[str, list[RankProcess]] = {job_id: [] for job_id in self.liveness.jobs if job_id not in jobs}
        self._judge(jobs | ended)
        self.liveness.expire(self.clock.monotonic(), jobs)

    def _jobs(self) -> dict[str, list[RankProcess]]:
        jobs: dict[str, list[RankProcess]] = {}
        for process in self.processes.values():
            if label := self.binder.labels.label_of(process):
                jobs.setdefault(label.job_id, []).append(process)
        return jobs

    def _judge(self, jobs: Mapping[str, list[RankProcess]]) -> None:
        """Set the verdicts of these jobs' processes, and update the jobs' JobLiveness; O(n log n)."""
        self.changed.clear()
        now, now_seconds = self.clock.monotonic(), self.clock.time()
        for job_id, members in jobs.items():
            for process, verdict in zip(members, judge_job(members, now, self.liveness.thresholds), strict=True):
                process.verdict = verdict
            self.liveness.update(job_id, members, now, now_seconds)
        self.published = None

    def _expire(self, now: float) -> None:
        label_of = self.binder.labels.label_of
        expired = [
            key
            for key, process in self.processes.items()
            if expiry.is_over(process, holds_label=label_of(process) is not None, now=now)
        ]
        for key in expired:
            self._drop(key)
        for key in list(expiry.surplus(self.processes)):
            self._drop(key)
        self.binder.owners.keep(self.processes.values())
        self.expire_writers(now)

    def _drop(self, key: ProcessKey) -> None:
        process = self.processes.pop(key)
        self.binder.release(key, process)

    def make_room(self, owner: Owner) -> bool:
        """Evict the ``eviction_candidate`` for a new process of ``owner``; return False without a candidate."""
        self.judge_changed()
        if (key := expiry.eviction_candidate(self.processes, owner)) is not None:
            self._drop(key)
        return key is not None

    def dump(self) -> bytes:
        """Encode the table for the checkpoint."""
        table = SavedTable(
            processes=list(self.processes.values()),
            writer_keys=list(self.writers.items()),
            saved_at=self.clock.monotonic() if self.running() else 0.0,  # 0.0: equal tables have equal bytes
            schedulers=sorted(self.binder.owners.schedulers),
            jobs=self.liveness.jobs,
        )
        return msgspec.msgpack.encode(table)

    def load(self, section: bytes) -> None:
        """Restore a section that ``dump`` encoded in this boot; raises ValueError if it is damaged.

        Processes stay unconfirmed, and are not shown, until an exporter observes them or their exit.
        """
        saved = msgspec.msgpack.decode(section, type=SavedTable)
        for process in saved.processes:
            process.confirmed = process.exited_at is not None
            process.silence = None
            if process.exited_at is None and process.unproven_since is None:
                process.unproven_since = saved.saved_at
        self.binder.owners.schedulers.update(saved.schedulers)
        self.processes.update((process.facts.key, process) for process in saved.processes if process.facts is not None)
        self.writers.update(saved.writer_keys)
        self.binder.restore(self.stand_ins())
        self.liveness.jobs.update(saved.jobs)
        self.liveness.loaded_at = self.clock.monotonic()
        self._judge_all()

    # -- writers of records ----------------------------------------------------------------------------------------

    def unlinked_writers(self) -> dict[WriterKey, int | None]:
        """Return the writers whose process is still unknown, each with the uid of its file."""
        since = self.clock.monotonic() - LINK_SECONDS
        return {key: self.writers[key].uid for key, stand_in in self.stand_ins().items() if stand_in.found_at > since}

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """Return the label of one rank of a writer; None until the label is published."""
        process = self.process_of(writer_key)
        return None if process is None else self.binder.label(process, comm, comm_rank)

    def recording_settings(self, writer_key: WriterKey) -> Mapping[str, str] | None:
        """Return the kept variables (``keep_variables``) of a writer's process; None while unknown."""
        process = self.process_of(writer_key)
        return None if process is None or process.facts is None else process.facts.environment

    def is_expired(self, writer_key: WriterKey) -> bool:
        """Return True when the writer's series must be removed because the record of its rank has expired."""
        record = self.writers.get(writer_key)
        return record is not None and record.expired_at is not None

    def stand_ins(self) -> dict[WriterKey, RankProcess]:
        """Return the stand-ins of processes that were never seen, by writer."""
        return {
            writer_key: record.stand_in for writer_key, record in self.writers.items() if record.stand_in is not None
        }

    def expire_writers(self, now: float) -> None:
        """Expire writers whose process left the table, and idle writers that have no process or a truncated file."""
        newest: dict[tuple[int, int], int] = {}
        for writer_key in self.writers:
            file = (writer_key.device, writer_key.inode)
            newest[file] = max(newest.get(file, 0), writer_key.generation)
        for writer_key, record in list(self.writers.items()):
            if record.expired_at is None:
                older = writer_key.generation < newest[writer_key.device, writer_key.inode]
                idle = (record.process is None or older) and now - record.seen_at > WRITER_IDLE_SECONDS
                orphaned = record.stand_in is None if record.process is None else record.process not in self.processes
                if idle or orphaned:
                    self.binder.release(writer_key, record.stand_in)
                    record.expired_at, record.stand_in = now, None
            elif now - record.expired_at > WRITER_IDLE_SECONDS:
                del self.writers[writer_key]

    def process_of(self, writer_key: WriterKey) -> RankProcess | None:
        """Return the process of a writer, or its stand-in."""
        record = self.writers.get(writer_key)
        if record is None:
            return None
        return self.processes.get(record.process) if record.process is not None else record.stand_in
