"""Writers of records and the processes they belong to; what records say of their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.core.checkpoint import saved_sum
from agent.core.clock import Clock
from agent.core.identity import Membership, ProcessKey, RankLabel, WriterKey
from agent.ranks.naming.binding import RankBinder
from agent.ranks.rank.process import RankProcess, TableCounts
from agent.ranks.writers import WriterBook, WriterRecord

FUTURE_SLACK_SECONDS = 2.0
"""A record may be this much newer than now; a newer one counts as this much newer."""


class WriterLinks:
    """Puts what records say into the rank process that wrote them, or into a stand-in while that is not known."""

    def __init__(
        self,
        clock: Clock,
        hostname: str,
        processes: Mapping[ProcessKey, RankProcess],
        binder: RankBinder,
        counts: TableCounts,
    ) -> None:
        self._clock = clock
        self._hostname = hostname
        self._processes = processes
        self._binder = binder
        self._counts = counts
        self.book = WriterBook()
        self.hostnames: frozenset[str] = frozenset({hostname})

    def observe_records(
        self,
        writer_key: WriterKey,
        memberships: Iterable[Membership],
        last_progress_seconds: float | None,
        uid: int | None,
    ) -> None:
        """See ``RankTable.observe_records``."""
        now = self._clock.monotonic()
        record = self.book.see(writer_key, now)
        if record is None:
            self._counts.refused += 1
            return
        record.uid = uid
        process = self._process_of(record)
        if process is None:
            return
        if record.process is None and last_progress_seconds is not None:
            self._link_former(writer_key, last_progress_seconds)
            process = self._process_of(record) or process
        for membership in memberships:
            process.join(membership, now, self._counts)
        if last_progress_seconds is not None:
            process.note_progress(min(last_progress_seconds, self._clock.time() + FUTURE_SLACK_SECONDS))

    def link(self, writer_key: WriterKey, key: ProcessKey) -> None:
        """See ``RankTable.link``."""
        record, process = self.book.records.get(writer_key), self._processes.get(key)
        if record is None or process is None or record.process is not None:
            return
        unseen, record.process, record.unseen = record.unseen, key, None
        self.hostnames |= {writer_key.hostname}
        if unseen is None:
            return
        for membership in unseen.members.values():
            process.join(membership, unseen.seen_at[membership.comm], self._counts)
        if unseen.progress_seconds is not None:
            process.note_progress(unseen.progress_seconds)
        for label in unseen.slots or ():
            is_conflict = process.slots is not None and label not in process.slots
            self._counts.conflicts = saved_sum(self._counts.conflicts, is_conflict)
        self._binder.labels.release(unseen)

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """See ``RankTable.label``."""
        record = self.book.records.get(writer_key)
        process = None if record is None else self._process_of(record)
        return None if process is None else self._binder.label(process, comm, comm_rank)

    def settings(self, writer_key: WriterKey) -> Mapping[str, str] | None:
        """See ``RankTable.recording_settings``."""
        record = self.book.records.get(writer_key)
        process = None if record is None else self._process_of(record)
        return None if process is None or process.facts is None else process.facts.environment

    def expire(self, now: float) -> None:
        """Forget the writers whose process was removed from the table, and those that have been idle for too long."""
        for writer_key, unseen in self.book.expire(now, self._processes):
            self._binder.release(writer_key, unseen)
        self.name_hosts()

    def name_hosts(self) -> None:
        """Find this node's host names: its own and its containers'. A name may move to another node with its pod."""
        self.hostnames = frozenset({self._hostname, *self.book.hostnames(self._processes)})

    def _process_of(self, record: WriterRecord) -> RankProcess | None:
        return self._processes.get(record.process) if record.process is not None else record.unseen

    def _link_former(self, writer_key: WriterKey, last_progress_seconds: float) -> None:
        """Link a process that truncated its file just before it left: no process holds the file now.

        Of one that left while the agent was away it is not known when: what is newer may be a successor's of its pid.
        """
        key = self.book.former(writer_key)
        process = None if key is None else self._processes.get(key)
        if key is None or process is None or process.exited_at is None:
            return
        unseen_seconds = 0.0 if process.unproven_since is None else process.exited_at - process.unproven_since
        if last_progress_seconds <= process.exited_seconds - unseen_seconds:
            self.link(writer_key, key)
