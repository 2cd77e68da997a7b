"""Write exporters' evidence into the rank table: one writer per exporter run, called in the event loop."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.core.identity import Membership, ProcessKey, RankLabel, WriterKey
from agent.core.leased import Leased
from agent.ranks.rank.environment import MAX_SETTING_CHARACTERS, read_claim
from agent.ranks.rank.evidence import RasSilence
from agent.ranks.rank.exit_status import ExitStatus, JobEnd
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.process import LEAST_MEMBERSHIPS, MAX_MEMBERSHIPS, RankProcess
from agent.ranks.records import WriterRecord
from agent.ranks.snapshot import PublishedProcess, published
from agent.ranks.speeds import RankSpeed
from agent.ranks.table import RankTable

MAX_PROCESSES = 1024
MAX_WRITERS = 4096
MAX_IN_ALL = 16_384
"""Processes and writers share this number of memberships in communicators: many more do not fit into the checkpoint."""
MAX_FORMER = 8
"""Limit of generations that the search for a file's previous writer goes back: some generations hold no record."""
OOM_LOG_SECONDS = 10.0
"""The kernel logs an OOM kill at most this long after the exit; a later line is about another process of this pid."""


class RankWriter(Leased[RankTable]):
    """Writes the evidence of exporter ``source``. ``snapshot`` returns the same object until the next tick or write.

    ``kept_variables``, ``unlinked_writers``, ``label``, ``recording_settings`` and ``is_expired``: RankTable's methods.
    ``late_share``: RankSpeeds' method.
    """

    def __init__(self, table: RankTable, source: str) -> None:
        super().__init__(table, source)
        self._at_end: dict[str, Callable[[], object]] = {}
        self.snapshot, self.kept_variables, self.label = table.snapshot, table.kept_variables, table.label
        self.recording_settings, self.is_expired = table.recording_settings, table.is_expired
        self.unlinked_writers, self.late_share = table.unlinked_writers, table.speeds.late_share

    @property
    def _lent(self) -> RankTable:
        """Return the table for a write, and mark its snapshot as out of date."""
        table = super()._lent
        table.published = None
        return table

    def close(self) -> None:
        """Withdraw the evidence that is valid only while the exporter runs.

        Variables and held files stay until the exporter's next run: the variables of a process are read only once, at
        its discovery, and a file that no process holds would no longer be read.
        """
        for withdraw in list(self._at_end.values()):
            withdraw()
        self._at_end.clear()
        super().close()

    # -- processes -------------------------------------------------------------------------------------------------

    def process(self, key: ProcessKey) -> PublishedProcess | None:
        """Return a copy of the process, with or without a label; None if the table does not have it."""
        process = self._table.processes.get(key)
        return None if process is None else published(process)

    def keep_variables(self, names: frozenset[str]) -> None:
        """Keep these environment variables of rank processes discovered from now on."""
        self._lent.variables[self._source] = names

    def observe_process(self, facts: ProcessFacts) -> bool:
        """Add a rank process; return False if the table is full and no other process can be evicted."""
        table = self._lent
        now = table.clock.monotonic()
        if facts.key in table.processes:
            return True
        if len(table.processes) >= MAX_PROCESSES and not table.make_room(facts.owner):
            table.refused += 1
            return False
        host, environment = table.hostname, facts.environment or {}
        if facts.network_namespace:  # each pod has its own loopback
            host = f"{host}/{facts.network_namespace}"
        proven = (facts.owner.job_id, facts.owner.scheduler)
        claim = read_claim(environment, host, table.job_id_variables, proven)
        if facts.environment is not None:
            names = frozenset[str]().union(*table.variables.values()) & environment.keys()
            kept = {name: environment[name][:MAX_SETTING_CHARACTERS] for name in names}
            facts = msgspec.structs.replace(facts, environment=kept)
        table.processes[facts.key] = RankProcess(found_at=now, facts=facts, claim=claim)
        return True

    def observe_state(
        self,
        key: ProcessKey,
        state: str = "S",
        blocked_since: float | None = None,
        kill_pending: bool = False,
        finalized: bool | None = None,
    ) -> None:
        """Note that a rank process was just seen running.

        ``state``: the kernel's letter. ``blocked_since``: the time since which a thread that NCCL needs has not run.
        ``finalized`` None: unknown, the last value stays.
        """
        process = self._lent.processes.get(key)
        if process is None or process.exited_at is not None:
            return
        self._at_end["sight"] = self.lose_sight
        process.confirmed, process.unproven_since = True, None
        process.state, process.blocked_since, process.kill_pending = state, blocked_since, kill_pending
        process.finalized = process.finalized if finalized is None else finalized

    def lose_sight(self) -> None:
        """Record that no exporter observes processes: after UNSEEN_SECONDS they are hidden until one does."""
        table = self._lent
        for process in table.running().values():
            if process.unproven_since is None:
                process.unproven_since = table.clock.monotonic()

    def observe_without_nccl(self, count: int) -> None:
        """Note how many processes have a rank's environment but have not loaded NCCL."""
        self._lent.without_nccl = count
        self._at_end["without_nccl"] = lambda: self.observe_without_nccl(0)

    def observe_held_files(self, held: Mapping[tuple[int, int], str]) -> None:
        """Note the record files that ranks on this node hold open: the path of each by device and inode."""
        self._lent.held_files = held

    def observe_user(self, uid: int, name: str) -> None:
        """Note a user name that was unknown when the user's processes were discovered."""
        for process in self._lent.processes.values():
            if process.facts is not None and process.facts.uid == uid:
                process.facts = msgspec.structs.replace(process.facts, user=name)

    def observe_memberships(self, key: ProcessKey, memberships: Iterable[Membership]) -> None:
        """Note the memberships of a process in communicators, from a source other than the process' records."""
        if (process := self._lent.processes.get(key)) is not None:
            self._join(process, memberships)

    def observe_silences(self, silences: Mapping[ProcessKey, RasSilence]) -> None:
        """Note which processes on this node are missing in RAS reports; for all other processes the silence ends."""
        for key, process in self._lent.processes.items():
            process.silence = silences.get(key) if process.exited_at is None else None
        self._at_end["silences"] = lambda: self.observe_silences({})

    # -- exits -----------------------------------------------------------------------------------------------------

    def observe_exit(self, key: ProcessKey, status: ExitStatus | None) -> None:
        """Note the exit of a process; called again when the exit status becomes known.

        The process is `exited` until its job is judged: at the next tick, or earlier by ``judge_changed``.
        """
        table = self._lent
        if (process := table.processes.get(key)) is None:
            return
        if process.exited_at is None:
            process.leave(table.clock.monotonic(), table.clock.time())
            if process.slots is None:
                table.binder.bind(process, key)
        process.note_status(status)
        if label := table.binder.labels.label_of(process):
            table.changed.add(label.job_id)

    def observe_exception(self, key: ProcessKey, name: str) -> None:
        """Note the exception that ended a process."""
        if (process := self._lent.processes.get(key)) is not None:
            process.exception = name

    def observe_oom_kill(self, key: ProcessKey) -> None:
        """Note a fresh kernel log line: the OOM killer sent this process SIGKILL."""
        process, now = self._lent.processes.get(key), self._table.clock.monotonic()
        if process is None or (process.exited_at is not None and now - process.exited_at > OOM_LOG_SECONDS):
            return
        process.oom_logged = True
        if process.exited_at is not None:
            self.observe_exit(key, None)

    def observe_job_ends(self, ends: Iterable[JobEnd]) -> None:
        """Note how schedulers ended jobs on this node. Exporters report an end repeatedly: exits can follow later."""
        table, by_id = self._lent, {end.job_id: end for end in ends}
        for process in table.processes.values() if by_id else ():
            if (end := by_id.get(process.scheduled_job_id)) is None:
                continue
            is_changed = process.note_job_end(end, table.liveness.thresholds)
            if is_changed and (label := table.binder.labels.label_of(process)):
                table.changed.add(label.job_id)
            for job_id in {label.job_id for label in process.labels}:  # with the hash of its group, if it has one
                table.liveness.note_end(end, job_id, table.clock.monotonic(), table.clock.time())

    def judge_changed(self) -> None:
        """Judge the jobs with an exit, or a new exit status, since the last verdict."""
        self._lent.judge_changed()

    # -- records ---------------------------------------------------------------------------------------------------

    def observe_records(
        self,
        writer_key: WriterKey,
        memberships: Iterable[Membership],
        last_progress_seconds: float | None,
        uid: int | None = None,
    ) -> None:
        """Note new memberships from records, the epoch time of the newest record, and the uid of the file's owner."""
        table = self._lent
        now = table.clock.monotonic()
        record = table.writers.get(writer_key)
        if record is None and len(table.writers) >= MAX_WRITERS:
            table.refused += 1
            return
        if record is None or record.expired_at is not None:
            record = table.writers[writer_key] = WriterRecord(now, None, RankProcess(found_at=now))
        record.seen_at, record.uid = now, uid
        if record.process is None and last_progress_seconds is not None:
            self._link_former(writer_key, last_progress_seconds)
        process = table.process_of(writer_key)
        if process is None:
            return
        self._join(process, memberships)
        if last_progress_seconds is not None:
            process.note_progress(last_progress_seconds, table.clock.time())

    def link(self, writer_key: WriterKey, key: ProcessKey) -> None:
        """Note that process ``key`` wrote the records of ``writer_key``; the process gets the records' evidence."""
        table = self._lent
        record, process = table.writers.get(writer_key), table.processes.get(key)
        if record is None or process is None or record.process is not None:
            return
        stand_in, record.process, record.stand_in = record.stand_in, key, None
        if stand_in is None:
            return
        process.seen_at = stand_in.seen_at | process.seen_at
        self._join(process, stand_in.members.values())
        if stand_in.progress_seconds is not None:
            process.note_progress(stand_in.progress_seconds, table.clock.time())
        for label in stand_in.labels:
            if process.slots is not None and label not in process.slots:
                process.log_contradiction(label.rank)
        table.binder.labels.release(stand_in)

    def _join(self, process: RankProcess, memberships: Iterable[Membership]) -> None:
        table, now = self._table, self._table.clock.monotonic()
        share = MAX_IN_ALL // (len(table.processes) + len(table.writers) or 1)
        limit = max(LEAST_MEMBERSHIPS, min(MAX_MEMBERSHIPS, share))
        for membership in memberships:
            table.refused += not process.join(membership, now, limit)

    def observe_read_otherwise(self, keys: frozenset[ProcessKey]) -> None:
        """Note which processes need no records because another source describes them."""
        self._lent.read_otherwise = keys
        self._at_end["read_otherwise"] = lambda: self.observe_read_otherwise(frozenset())

    def observe_speeds(self, speeds: Mapping[RankLabel, RankSpeed]) -> None:
        """Replace the speeds of all ranks."""
        self._lent.speeds.observe(speeds)
        self._at_end["speeds"] = lambda: self.observe_speeds({})

    def _link_former(self, writer_key: WriterKey, last_progress_seconds: float) -> None:
        """Link the writer to the process that truncated the file just before its exit. No process holds the file now,
        so the process is that of the file's earlier generation.

        After an exit without a running agent, the exit time is unknown: newer records can be of a later process.
        """
        process = self._former(writer_key)
        if process is None or process.exited_at is None:
            return
        unseen_seconds = 0.0 if process.unproven_since is None else process.exited_at - process.unproven_since
        if last_progress_seconds <= process.exited_seconds - unseen_seconds:
            self.link(writer_key, process.key)

    def _former(self, writer_key: WriterKey) -> RankProcess | None:
        """Return the process that wrote an earlier generation of the same file, with the same host name and pid."""
        for generation in range(writer_key.generation - 1, max(-1, writer_key.generation - 1 - MAX_FORMER), -1):
            record = self._table.writers.get(writer_key._replace(generation=generation))
            if record is not None and record.process is not None:
                return self._table.processes.get(record.process)
        return None
