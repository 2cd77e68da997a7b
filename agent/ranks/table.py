"""The rank table: which processes are ranks, which rank each is, whether it runs, and how it ended.

Every method is called in the event loop. Exporters put evidence in; only the table makes labels. A published binding
(process -> job and rank) holds for the life of the process: later contradictions are counted and never change a label.
"""

from collections.abc import Iterable, Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import Membership, ProcessKey, RankLabel
from agent.hardware.inventory import Hardware
from agent.ranks import expiry
from agent.ranks.liveness.book import LivenessBook
from agent.ranks.rank.environment import KEPT_VARIABLES, kept_settings, read_claim
from agent.ranks.rank.evidence import RasSilence
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict import judge_job
from agent.ranks.snapshot import RankSnapshot, views_of
from agent.ranks.speeds import SpeedBook
from agent.ranks.writers import SavedTable, WrittenRanks, decode

MAX_PROCESSES = 1024
UNSEEN_SECONDS = 5.0
"""How long a process that is not looked at any more counts as running: a reload takes less."""
OOM_LOG_SECONDS = 10.0
"""A kernel log line may name an exit up to this long after it; a later line is about another process."""


class RankTable(WrittenRanks):
    """See the module. ``settle_at_once``: bind without waiting (a single pass over recorded data)."""

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool = False) -> None:
        super().__init__(clock, hostname, settle_at_once)
        self._changed: set[str] = set()
        self._variables: frozenset[str] = frozenset()
        self._job_id_variables: tuple[str, ...] = ()
        self.liveness = LivenessBook(self._binder.labels)
        self.renamed = self._binder.renamed
        """The job ids that went to a proven owner, in order: earlier labels with them must be fetched again."""
        self.held_files: Mapping[tuple[int, int], str] = {}
        self.read_otherwise: frozenset[ProcessKey] = frozenset()
        self.without_nccl = 0
        self.speeds = SpeedBook(clock)

    def keep_variables(self, names: frozenset[str]) -> None:
        """Keep these environment variables of the rank processes found from now on, for an exporter that needs them."""
        self._variables |= names

    def variables(self) -> frozenset[str]:
        """Return the variables to read of a rank process: those that identity is made of, and those to be kept."""
        return KEPT_VARIABLES | self._variables | frozenset(self._job_id_variables)

    def take_job_ids_from(self, variables: tuple[str, ...]) -> None:
        """Take the job ids of processes found from now on from these environment variables before the known ones."""
        self._job_id_variables = variables

    def observe_process(self, facts: ProcessFacts) -> bool:
        """Add a rank process, if need be in the place of one of the owner with most; False when there is no room."""
        now = self._clock.monotonic()
        if facts.key in self._processes:
            return True
        if len(self._processes) >= MAX_PROCESSES and not self._make_room(facts.owner.key):
            self._refused += 1
            return False
        proven, place = (facts.owner.job_id, facts.owner.scheduler), facts.place(self._hostname)
        claim = read_claim(facts.environment or {}, place, self._job_id_variables, proven)
        if facts.environment is not None:
            settings = kept_settings(facts.environment, self._variables)
            facts = msgspec.structs.replace(facts, environment=settings)
        self._processes[facts.key] = RankProcess(found_at=now, facts=facts, claim=claim)
        return True

    def observe_state(
        self, key: ProcessKey, state: str, blocked_since: float | None, kill_pending: bool, finalized: bool
    ) -> None:
        """Note the state of a rank process: the kernel's letter, since when it is blocked, and what was seen of it."""
        process = self._processes.get(key)
        if process is None or process.exited_at is not None:
            return
        process.state, process.blocked_since, process.kill_pending = state, blocked_since, kill_pending
        process.finalized = finalized

    def observe_user(self, uid: int, name: str) -> None:
        """Note the name of a user, which was not known when processes of it were found."""
        for process in self._processes.values():
            if process.facts is not None and process.facts.uid == uid:
                process.facts = msgspec.structs.replace(process.facts, user=name)

    def observe_exception(self, key: ProcessKey, name: str) -> None:
        """Note the exception that ended a process."""
        if (process := self._processes.get(key)) is not None:
            process.exception = name

    def observe_silences(self, silences: Mapping[ProcessKey, RasSilence]) -> None:
        """Note which processes here RAS does not hear; those not in ``silences`` it hears, or says nothing of."""
        for key, process in self._processes.items():
            process.silence = silences.get(key) if process.exited_at is None else None

    def observe_gpus(self, hardware: Hardware) -> None:
        """Note which GPUs the processes use; what one used before it left stays."""
        for key, process in self.processes().items():
            process.note_gpus(hardware, key.pid)

    def observe_memberships(self, key: ProcessKey, memberships: Iterable[Membership]) -> None:
        """Note the places of a process in communicators, from another source than its own records."""
        if (process := self._processes.get(key)) is not None:
            for membership in memberships:
                self._refused += not process.join(membership, self._clock.monotonic())

    def observe_exit(self, key: ProcessKey, status: ExitStatus | None) -> None:
        """Note that a process is gone; called again when its status is learnt.

        Its state is `exited` until its job is judged: with the tick, or before that by ``judge_changed``.
        """
        if (process := self._processes.get(key)) is None:
            return
        if process.exited_at is None:
            process.leave(self._clock.monotonic(), self._clock.time())
            if process.slots is None:
                self._binder.bind(process, key, self._processes)
        process.note_status(status)
        if label := self._binder.labels.held(process):
            self._changed.add(label.job_id)

    def observe_oom_kill(self, key: ProcessKey) -> None:
        """Note that the kernel's log says, just now, that the OOM killer sent a process SIGKILL."""
        process = self._processes.get(key)
        now = self._clock.monotonic()
        if process is None or (process.exited_at is not None and now - process.exited_at > OOM_LOG_SECONDS):
            return
        process.oom_logged = True
        if process.exited_at is not None:
            self.observe_exit(key, None)

    def observe_job_ends(self, ends: Iterable[JobEnd]) -> None:
        """Note how schedulers ended jobs here, one end per job. Schedulers repeat it, as exits may follow."""
        by_id = {end.job_id: end for end in ends}
        for process in self._processes.values() if by_id else ():
            end = by_id.get(process.scheduled_job_id)
            if end is None:
                continue
            if process.note_job_end(end, self.liveness.numbers) and (label := self._binder.labels.held(process)):
                self._changed.add(label.job_id)
            if process.shown_job_id:
                self.liveness.note_end(end, process.shown_job_id, self._clock.monotonic(), self._clock.time())

    def judge_changed(self) -> None:
        """Judge the jobs with a process that exited, or whose exit status arrived, since they were last judged."""
        if self._changed:
            jobs = self._jobs()
            self._judge({job_id: jobs[job_id] for job_id in self._changed if job_id in jobs})

    def confirm(self, key: ProcessKey) -> None:
        """Note that a process was just seen to run."""
        process = self._processes.get(key)
        if process is not None and process.exited_at is None:
            process.confirmed, process.unproven_since = True, None

    def lose_sight(self) -> None:
        """Note that looks at processes ended: show them for UNSEEN_SECONDS, after that only when confirmed again."""
        now = self._clock.monotonic()
        for process in self.processes().values():
            process.unproven_since = now if process.unproven_since is None else process.unproven_since

    def process(self, key: ProcessKey) -> RankProcess | None:
        """Return the process, as long as it is shown."""
        return self._processes.get(key)

    def labels_of(self, key: ProcessKey) -> tuple[RankLabel, ...]:
        """Return the published labels of a process; empty while it has none."""
        process = self._processes.get(key)
        return tuple(label for label in (process.slots or () if process else ()) if label is not None)

    def processes(self) -> dict[ProcessKey, RankProcess]:
        """Return the rank processes that run, as far as is known."""
        return {key: process for key, process in self._processes.items() if process.exited_at is None}

    def without_records(self, seconds: float) -> list[ProcessFacts]:
        """Return the running processes found at least ``seconds`` ago without any record or other file."""
        since, read = self._clock.monotonic() - seconds, self.read_otherwise
        found = (process for key, process in self._processes.items() if key not in read)
        return [process.facts for process in found if process.facts is not None and process.has_no_records(since)]

    def snapshot(self) -> RankSnapshot:
        """Copy what the render thread needs."""
        running = self.processes().values()
        return RankSnapshot(
            ranks=views_of(self._processes.values(), self._binder.labels),
            duplicates=len(self._binder.duplicates),
            refused=self._refused,
            unidentified=sum(process.slots is None and process.is_surely_a_rank() for process in running),
            unreadable=sum(p.facts is not None and p.facts.environment is None for p in running),
            taken_seconds=self._clock.time(),
            taken_at=self._clock.monotonic(),
            jobs=self.liveness.lines(),
            without_nccl=self.without_nccl,
        )

    def tick(self) -> None:
        """Publish bindings that are due, judge every job, and remove records that have expired. Called at 1 Hz."""
        now = self._clock.monotonic()
        self.judge_changed()  # before a restarted rank takes the label of one that led to the end of others
        self._binder.bind_due(self._processes, self._unseen())
        for process in self.processes().values():
            if process.unproven_since is not None and now - process.unproven_since > UNSEEN_SECONDS:
                process.confirmed = False
        self._judge_all()
        self._expire(now)

    def _judge_all(self) -> None:
        jobs = self._jobs()
        gone: dict[str, list[RankProcess]] = {job_id: [] for job_id in self.liveness.jobs if job_id not in jobs}
        self._judge(jobs | gone)
        self.liveness.expire(self._clock.monotonic())

    def _jobs(self) -> dict[str, list[RankProcess]]:
        """Return the processes that hold a label, by job."""
        jobs: dict[str, list[RankProcess]] = {}
        for process in self._processes.values():
            if label := self._binder.labels.held(process):
                jobs.setdefault(label.job_id, []).append(process)
        return jobs

    def _judge(self, jobs: Mapping[str, list[RankProcess]]) -> None:
        """Write verdicts into the processes of these jobs, and their lines of the liveness book. O(n log n) in them."""
        self._changed.clear()
        now, now_seconds = self._clock.monotonic(), self._clock.time()
        for job_id, members in jobs.items():
            for process, verdict in zip(members, judge_job(members, now, self.liveness.numbers), strict=True):
                process.verdict = verdict
            self.liveness.look(job_id, members, now, now_seconds)

    def _expire(self, now: float) -> None:
        held = self._binder.labels.held
        gone = [
            key
            for key, process in self._processes.items()
            if expiry.is_over(process, holds_label=held(process) is not None, now=now)
        ]
        for key in gone:
            self._drop(key)
        for key in list(expiry.surplus(self._processes)):
            self._drop(key)
        self._binder.owners.keep(self._processes.values())
        self._expire_writers(now)

    def _drop(self, key: ProcessKey) -> None:
        process = self._processes.pop(key)
        self._binder.release(key, process)

    def _make_room(self, owner: str) -> bool:
        self.judge_changed()
        if (key := expiry.gives_way(self._processes, owner)) is not None:
            self._drop(key)
        return key is not None

    def dump(self) -> bytes:
        """Encode the table for the checkpoint."""
        table = SavedTable(
            processes=list(self._processes.values()),
            writer_keys=list(self._writers.items()),
            saved_at=self._clock.monotonic() if self.processes() else 0.0,  # else equal tables are equal bytes
            schedulers=sorted(self._binder.owners.schedulers),
            jobs=self.liveness.jobs,
        )
        return msgspec.msgpack.encode(table)

    def load(self, section: bytes) -> None:
        """Take back what ``dump`` gave earlier in this boot; raises ValueError when it cannot be read.

        Processes count as unconfirmed, and are not shown, until they are observed or found gone.
        """
        saved = decode(section)
        self._binder.owners.schedulers.update(saved.schedulers)
        self._processes.update((process.facts.key, process) for process in saved.processes if process.facts is not None)
        self._writers.update(saved.writer_keys)
        self._binder.restore(self._processes, self._unseen())
        self._name_hosts()
        self.liveness.jobs.update(saved.jobs)
        self._judge_all()
