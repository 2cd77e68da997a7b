"""Scans /proc once a second in its own thread, and waits for exits with pidfds on the event loop."""

from collections.abc import Iterable

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, OwnThread, Spec
from agent.sdk.metrics import Family, Metric, label_fields
from agent.sdk.ranks import ProcessKey, RankLabel, proof_of
from agent.sdk.system import ProcFS
from exporters.process.exits import ExitWatch, open_pidfd
from exporters.process.foreign import FOREIGN, GpuUsers, Shown
from exporters.process.scan import Scanner, ScanRequest, ScanResult
from exporters.process.usage import totals as usage_families
from exporters.process.usage.groups import JobTotals
from exporters.process.usage.reader import Usages, unavailable
from exporters.process.usage.totals import GroupTotals, RankUsage
from exporters.process.users import UserNames

PROCESS_STATES = dict.fromkeys("SI", "sleeping") | dict.fromkeys("ZX", "zombie") | {
    "R": "running", "D": "disk_sleep", "T": "stopped", "t": "traced",
}  # fmt: skip
REFUSED_SECONDS = 30.0  # A process that the full rank table refused is offered again after this time

# fmt: off
PROCESS_STATE = Family("rankwatch_rank_process_state", "gauge",
    "The kernel's state of the main thread of the rank's process: running, sleeping, disk_sleep, stopped, traced or "
    "zombie; always 1. Unknown states count as sleeping. An ended rank has no series.",
    ("job_id", "rank", "state"), "1 per live rank", "max")
WITHOUT_NCCL = Family("rankwatch_processes_without_nccl", "gauge",
    "Processes whose environment names a rank (RANK, or an MPI's variable) and that have loaded neither NCCL nor RCCL: "
    "they use gloo or MPI, or have not initialised their process group yet.")
EXIT_STATUS_UNKNOWN = Family("rankwatch_process_exit_status_unknown_total", "counter",
    "Rank processes whose exit status stayed unknown: the kernel is older than Linux 6.15, and the agent has no ptrace "
    "right on the zombie.",
    aggregate="sum")
# fmt: on


class ProcessConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``exit_status_ioctl`` False: do not use PIDFD_GET_INFO, as on kernels before 6.15.

    ``without_nccl``: a process whose environment names a rank is a rank even without NCCL, unless another process of
    its job has loaded NCCL. Such a process counts as a rank after a minute, or at once if its launcher had a rank of
    the same program before. ``all_values``: export the CPUs that each rank may run on: 1 more series per rank.
    """

    exit_status_ioctl: bool = True
    without_nccl: bool = False
    all_values: bool = False


class ProcessSnapshot(msgspec.Struct, frozen=True):
    """The data to render: each live rank's label, the kernel's letter for its state, and its usage."""

    states: tuple[tuple[RankLabel, str], ...]
    usages: tuple[tuple[RankLabel, RankUsage], ...]
    jobs: dict[str, GroupTotals]
    without_nccl: int
    unknown_exits: int
    foreign: Shown


class ProcessExporter:
    """Finds rank processes and watches them; its evidence goes into the rank table."""

    def __init__(self, config: ProcessConfig) -> None:
        self._config = config
        self._drained = False
        self._processes = self._without_nccl = 0
        self._unnamed: set[ProcessKey] = set()
        self._refused: dict[ProcessKey, float] = {}
        self._usages: dict[ProcessKey, RankUsage] = {}
        self._jobs = JobTotals()

    async def start(self, ctx: Context) -> None:
        """Prepare the threads: for scans of /proc, exit statuses (which cannot wait for scans), user names."""
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self._thread: OwnThread = ctx.thread("process")
        self._scanner: Scanner | None = None
        self._exits = ExitWatch(
            ctx.ranks, self._proc, ctx.thread("process-exit"), ctx.log, ioctl=self._config.exit_status_ioctl
        )
        self._users = UserNames(ctx.thread("process-users"), ctx.ranks.observe_user, ctx.log)
        self._gpu_users = GpuUsers(ctx, self._thread, self._users.name)

    async def update(self) -> None:
        """Scan /proc once; NoData when /proc is not mounted (a mounted /proc shows at least this process)."""
        if self._scanner is None:
            try:
                self._scanner = await self._thread.call(lambda: Scanner(self._ctx.roots, self._ctx.failures))
            except FileNotFoundError:
                raise NoData from None
            for text in await self._thread.call(lambda: unavailable(self._proc, self._ctx.roots)):
                self._ctx.log.info(text)
        scanner, ranks = self._scanner, self._ctx.ranks
        known, writer_keys = tuple(ranks.snapshot().running), ranks.unlinked_writers()
        now = self._ctx.clock.monotonic()
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        request = ScanRequest(
            now, known, frozenset(self._refused), writer_keys, ranks.kept_variables(), self._config.without_nccl
        )
        watched = self._exits.watched()
        self._apply(*await self._thread.call(lambda: self._look(scanner, request, watched)))
        await self._gpu_users.update()
        if self._ctx.once:
            await self._users.settle()
        if not self._processes:
            raise NoData

    def snapshot(self) -> ProcessSnapshot:
        """Copy the data for ``families``."""
        views = [view for view in self._ctx.ranks.snapshot().ranks if view.process.exited_at is None]
        states = tuple((view.label, view.process.state) for view in views)
        usages = tuple((v.label, self._usages[v.process.key]) for v in views if v.process.key in self._usages)
        counts = (self._without_nccl, self._exits.unknown_exits)
        return ProcessSnapshot(states, usages, dict(self._jobs.waited), *counts, self._gpu_users.shown)

    def families(self, snapshot: ProcessSnapshot) -> Iterable[Metric]:
        """Render."""
        states = PROCESS_STATE.rows()
        for label, letter in snapshot.states:
            states.add((*label, PROCESS_STATES.get(letter, "sleeping")), 1.0)
        foreign = FOREIGN.rows()
        for *labels, count in snapshot.foreign:
            foreign.add(tuple(labels), count)
        yield states.metric
        yield from usage_families.render(snapshot.usages, snapshot.jobs, all_values=self._config.all_values)
        yield WITHOUT_NCCL.single(snapshot.without_nccl)
        yield EXIT_STATUS_UNKNOWN.single(snapshot.unknown_exits)
        yield foreign.metric

    async def drain(self) -> None:
        """Stop watching."""
        self._drained = True
        await self._exits.stop()
        self._users.stop()
        self._thread.stop()

    def _look(
        self, scanner: Scanner, request: ScanRequest, watched: frozenset[ProcessKey]
    ) -> tuple[ScanResult, dict[ProcessKey, int | OSError | None]]:
        """Scan once, and open pidfds of running processes not yet ``watched`` (blocking; on the scanner's thread)."""
        scanned = scanner.look(request)
        return scanned, {key: open_pidfd(self._proc, key) for key in scanned.observed if key not in watched}

    def _apply(self, scanned: ScanResult, pidfds: dict[ProcessKey, int | OSError | None]) -> None:
        if self._drained:  # the scan hung until after the drain: the next exporter has its own pidfds
            self._exits.watch(pidfds, running=())
            return
        ranks = self._ctx.ranks
        waiting = scanned.without_nccl if self._config.without_nccl else 0
        self._processes, self._without_nccl = scanned.processes, scanned.without_nccl - waiting
        self._ctx.note.say(f"{waiting} processes without NCCL become ranks within a minute" if waiting else "")
        ranks.observe_without_nccl(self._without_nccl)
        ranks.observe_held_files(scanned.held)
        for facts in scanned.new:
            user = facts.user if facts.uid is None else self._users.name(facts.uid)
            if ranks.observe_process(msgspec.structs.replace(facts, user=user)):
                self._unnamed.add(facts.key)
            else:
                self._refused[facts.key] = self._ctx.clock.monotonic() + REFUSED_SECONDS
        if scanned.unreadable:
            self._ctx.log.warning(
                "the environment of {processes} rank processes cannot be read: their ranks are named by their "
                "communicators alone. Run rankwatch-setup --with-other-users as root, then restart the jobs",
                processes=scanned.unreadable,
            )
        running = ranks.snapshot().running
        self._exits.watch(pidfds, running)
        for key, observation in scanned.observed.items():
            ranks.observe_state(
                key, observation.state, observation.blocked_since, observation.kill_pending, observation.finalized
            )
        for writer_key, key in scanned.links:
            ranks.link(writer_key, key)
        for key in scanned.gone:
            if key in running and self._exits.has_ended(key):
                self._exits.note_exit(key)
        self._note_usages(scanned.usages)
        self._log_named()
        self._exits.note_counts({key: observation.oom for key, observation in scanned.observed.items()})

    def _note_usages(self, usages: Usages | None) -> None:
        """Store the ranks' usage, if this scan measured it, and the control groups of processes with a label."""
        if usages is None:
            return
        self._usages = usages.ranks
        groups: dict[str, set[str]] = {}
        running = self._ctx.ranks.snapshot().running
        for key in usages.ranks.keys() & running.keys():
            for label in running[key].labels:
                groups.setdefault(label.job_id, set()).update(usages.ranks[key].groups)
        self._jobs.note(groups, usages.groups)

    def _log_named(self) -> None:
        running = self._ctx.ranks.snapshot().running
        self._unnamed &= running.keys()
        for key in sorted(self._unnamed):
            process = running[key]
            if labels := process.labels:
                self._unnamed.discard(key)
                who = label_fields(labels) | {"pid": key.pid, "user": process.user, "evidence": process.facts.evidence}
                named = {"named_by": process.source, "proof": proof_of(process)}
                self._ctx.log.info("rank {rank} of job {job_id} runs, pid {pid}", **who, **named)


SPEC = Spec(
    name="process",
    config=ProcessConfig,
    build=ProcessExporter,
    interval_seconds=1.0,
    deadline_seconds=1.0,
    families=(PROCESS_STATE, *usage_families.FAMILIES, WITHOUT_NCCL, EXIT_STATUS_UNKNOWN, FOREIGN),
)
