"""The exporter: looks at /proc once a second in its own thread, and waits for exits with pidfds on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container, Iterable
from signal import SIGKILL

import msgspec

from agent.api import (
    Context,
    ExitStatus,
    ExporterConfig,
    Family,
    Metric,
    NoData,
    OwnThread,
    ProcessKey,
    ProcFS,
    RankLabel,
    Spec,
    WriterKey,
)
from exporters.process.exit_status import from_pidfd, from_zombie, open_pidfd
from exporters.process.scan import Found, Scanner

EXIT_TRIES_SECONDS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""When, after the one before, a dead process is asked for its status again: its parent may reap it late."""

PROCESS_STATES = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "disk_sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "zombie",
}
_STATE_NAMES = ("running", "sleeping", "disk_sleep", "stopped", "traced", "zombie")

PROCESS_STATE = Family(
    "rankwatch_rank_process_state",
    "gauge",
    "1 for the state the kernel shows for the main thread of the rank's process, 0 for the rest; absent once it left.",
    ("job_id", "rank", "state"),
    "6 per live rank",
    "max",
)
PROCESSES_SEEN = Family(
    "rankwatch_process_seen",
    "gauge",
    "Processes of this node that the last look at /proc went over, kernel threads not counted.",
)
EXIT_STATUS_UNKNOWN = Family(
    "rankwatch_process_exit_status_unknown_total",
    "counter",
    "Rank processes whose exit status could not be learnt: no Linux 6.15 or newer, and no ptrace right on a zombie.",
    aggregate="sum",
)
PIDFD_ERRORS = Family(
    "rankwatch_process_pidfd_errors_total",
    "counter",
    "Times that a rank process could not be watched by pidfd; its exit is then seen at the next look at /proc.",
    aggregate="sum",
)


class ProcessConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``exit_status_ioctl`` False: do not ask the kernel by PIDFD_GET_INFO, as on kernels before 6.15."""

    exit_status_ioctl: bool = True


class ProcessSnapshot(msgspec.Struct, frozen=True):
    """What ``families`` renders: each live rank's label and the kernel's letter for its state."""

    states: tuple[tuple[RankLabel, str], ...]
    processes: int
    unknown_exits: int
    pidfd_errors: int


class ProcessExporter:
    """See the module. Its evidence goes into the rank table."""

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config
        self._watched: dict[ProcessKey, int] = {}
        self._drained = False
        self._asking: set[asyncio.Task[None]] = set()
        self._processes = 0
        self._unknown_exits = 0
        self._pidfd_errors = 0

    async def start(self, ctx: Context) -> None:
        """Prepare the scanner and its two threads (looks may be slow; asking for an exit must not wait for one)."""
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self._thread: OwnThread = ctx.thread("process")
        self._exits: OwnThread = ctx.thread("process-exit")
        self._scanner: Scanner | None = None

    async def update(self) -> None:
        """Look at /proc once; NoData when none is mounted there (we would at least see ourselves)."""
        if self._scanner is None:
            try:
                self._scanner = await self._thread.call(lambda: Scanner(self._ctx.roots))
            except FileNotFoundError:
                raise NoData from None
        scanner, ranks, now = self._scanner, self._ctx.ranks, self._ctx.clock.monotonic()
        known, writer_keys = tuple(ranks.processes()), ranks.unlinked_writers()
        watched = frozenset(self._watched)
        self._apply(*await self._thread.call(lambda: self._look(scanner, now, known, writer_keys, watched)))
        if not self._processes:
            raise NoData

    def snapshot(self) -> ProcessSnapshot:
        """Copy the states of the live ranks."""
        views = self._ctx.ranks.snapshot().ranks
        states = tuple((view.label, view.process.state) for view in views if view.process.exited_at is None)
        return ProcessSnapshot(states, self._processes, self._unknown_exits, self._pidfd_errors)

    def families(self, snapshot: ProcessSnapshot) -> Iterable[Metric]:
        """Render."""
        states = PROCESS_STATE.rows()
        for label, letter in snapshot.states:
            current = PROCESS_STATES.get(letter, "sleeping")
            for name in _STATE_NAMES:
                states.add((*label, name), float(name == current))
        yield states.metric
        yield PROCESSES_SEEN.single(snapshot.processes)
        yield EXIT_STATUS_UNKNOWN.single(snapshot.unknown_exits)
        yield PIDFD_ERRORS.single(snapshot.pidfd_errors)

    async def drain(self) -> None:
        """Stop watching."""
        self._drained = True
        self._ctx.ranks.lose_sight()
        for task in self._asking:
            task.cancel()
        for key in list(self._watched):
            self._unwatch(key)
        self._thread.stop()
        self._exits.stop()

    def _look(
        self,
        scanner: Scanner,
        now: float,
        known: tuple[ProcessKey, ...],
        writer_keys: tuple[WriterKey, ...],
        watched: frozenset[ProcessKey],
    ) -> tuple[Found, dict[ProcessKey, int | OSError | None]]:
        """One look, and pidfds of those that run and are not ``watched`` (blocking; on the scanner's thread)."""
        found = scanner.look(now, known, writer_keys)
        return found, {key: open_pidfd(self._proc, key) for key in found.standing if key not in watched}

    def _apply(self, found: Found, pidfds: dict[ProcessKey, int | OSError | None]) -> None:
        if self._drained:  # a look that hung until after the end: a successor has its own
            self._watch(pidfds, running=())
            return
        ranks = self._ctx.ranks
        self._processes = found.processes
        ranks.held_files = found.held
        for facts in found.new:
            if ranks.observe_process(facts):
                self._ctx.log.info("rank process found", pid=facts.key.pid, user=facts.user, evidence=facts.evidence)
        if found.unreadable:
            self._ctx.log.warning(
                "environment of rank processes not readable, ranks are named by their communicators alone; "
                "CAP_SYS_PTRACE for the service would mend it",
                processes=found.unreadable,
            )
        running = ranks.processes()
        self._watch(pidfds, running)
        for key, standing in found.standing.items():
            ranks.confirm(key)
            ranks.observe_state(key, standing.state, standing.blocked_since, standing.kill_pending, standing.finalized)
        for writer_key, key in found.links:
            ranks.link(writer_key, key)
        for key in found.gone:
            if key in running:
                self._on_exit(key)

    def _watch(self, pidfds: dict[ProcessKey, int | OSError | None], running: Container[ProcessKey]) -> None:
        """Have the loop call ``_on_exit`` when a process leaves; one that left since the look is not watched anew."""
        for key, pidfd in pidfds.items():
            if isinstance(pidfd, OSError):
                self._pidfd_errors += 1
                self._ctx.log.warning("process not watched by pidfd", pid=key.pid, error=pidfd.strerror)
            elif pidfd is not None and key in running:
                self._watched[key] = pidfd
                asyncio.get_running_loop().add_reader(pidfd, self._on_exit, key)
            elif pidfd is not None:
                os.close(pidfd)

    def _unwatch(self, key: ProcessKey) -> None:
        pidfd = self._watched.pop(key, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _on_exit(self, key: ProcessKey) -> None:
        """Tell the table at once, then find out how it ended.

        A parent that reaps at once leaves a few microseconds for the zombie's status, so it is read here and now: the
        kernel answers for a zombie without waiting for anything.
        """
        early = from_zombie(self._proc, key, self._may_ptrace(key))
        pidfd = self._watched.get(key)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
        self._ctx.ranks.observe_exit(key, None)
        task = asyncio.get_running_loop().create_task(self._learn_status(key, pidfd, early))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _learn_status(self, key: ProcessKey, pidfd: int | None, early: ExitStatus | None) -> None:
        status = None
        for delay in EXIT_TRIES_SECONDS:
            await asyncio.sleep(delay)
            status = await self._exits.call(lambda: self._ask(key, pidfd, early))
            if status is not None:
                break
            if pidfd is None:
                break
        self._unwatch(key)
        if status is None:
            self._unknown_exits += 1
            self._ctx.ranks.observe_exit(key, ExitStatus(known=False))
        else:
            self._ctx.ranks.observe_exit(key, status)
        self._ctx.log.info(
            "rank process left",
            pid=key.pid,
            signal=status.signal if status else None,
            code=status.code if status else None,
            oom=status.oom if status else None,
        )

    def _ask(self, key: ProcessKey, pidfd: int | None, early: ExitStatus | None) -> ExitStatus | None:
        """Both ways, then the cgroup (blocking; on the exit thread)."""
        status = early
        if status is None and self._config.exit_status_ioctl and pidfd is not None:
            status = from_pidfd(pidfd)
        status = status or from_zombie(self._proc, key, self._may_ptrace(key))
        if status is not None and status.signal == SIGKILL and self._scanner is not None:
            return msgspec.structs.replace(status, oom=self._scanner.oom_killed(key))
        return status

    def _may_ptrace(self, key: ProcessKey) -> bool:
        """A status of 0 from /proc means nothing where we may not ptrace; whether its environ could be read tells."""
        return self._ctx.ranks.environment_readable(key)


SPEC = Spec(
    name="process",
    config=ProcessConfig,
    build=ProcessExporter,
    interval_seconds=1.0,
    deadline_seconds=1.0,
    families=(PROCESS_STATE, PROCESSES_SEEN, EXIT_STATUS_UNKNOWN, PIDFD_ERRORS),
)
