"""Run the exporters and the rank table: start, reload section by section, tick, checkpoint, stop."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from agent.app.boot_file import BootFile
from agent.app.discovery import ExporterPlan, Prepared
from agent.app.exporter_schedule import Running
from agent.app.health_part import causes, health_part, struck_ranks
from agent.app.lease import Lease, Lender, ignore_ended
from agent.app.past import ShownPast
from agent.core.checkpoint import SAVE_INTERVAL_SECONDS, StateFile, StateSection
from agent.core.clock import Clock
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.export.exporter import ExporterConfig, Roots
from agent.export.registry import Source
from agent.ranks import families, health, liveness_families
from agent.ranks.table import RankTable
from agent.tail.hang_guard import WaitingCall

TICK_SECONDS = 1.0
RANKS_BYTES = 12 * 1024 * 1024
"""Limit of the rank table's size in the checkpoint."""
FIRST_LOOK_SECONDS = 30.0
"""The agent begins to serve series at most this long after its start, even if a read in /proc hangs. In this case the
search for processes is late, and the alert RankwatchLate fires."""
PROCESS_EXPORTER = "process"
"""The exporter that discovers rank processes, and confirms the processes in the checkpoint."""
LAST_SAVE_SECONDS = 5.0
"""Longest wait for the last checkpoint: a file system that hangs must not keep the agent from exiting."""


class Supervisor:
    """Owns the running exporters, the rank table and the checkpoint."""

    def __init__(self, clock: Clock, hostname: str, roots: Roots, state: StateFile, once: bool = False) -> None:
        self._clock = clock
        self._once = once
        self._log = Logger("supervisor")
        self._state = state
        self._state_thread = OwnThread("checkpoint")
        self._ranks_section = state.section("ranks", RANKS_BYTES)
        self._checks_section = state.section("checks")
        self._saved_at = float("-inf")
        self.ranks = RankTable(clock, hostname, settle_at_once=once)
        if not self._restore("rank table", self._ranks_section, self.ranks.load):
            self.ranks = RankTable(clock, hostname, settle_at_once=once)  # without the parts that are already loaded
        self._lender = Lender(roots=roots, clock=clock, hostname=hostname, ranks=self.ranks, state=state, once=once)
        self.series = self._lender.series
        self.helpers = self._lender.helpers
        self.hardware = self._lender.hardware
        self.ledger = self._lender.ledger
        self.counted: frozenset[str] = frozenset()
        self.evidence_file = self._lender.evidence.file
        self._lender.evidence.of("health").offer(partial(health_part, self.health_snapshot))
        self._past = ShownPast(
            clock, lambda: [exporter.source for exporter in self.running.values() if exporter.spec.keeps_past]
        )
        self._lender.evidence.of("past").offer(self._past.part)
        self._lender.evidence.struck = partial(struck_ranks, self.health_snapshot, self.ledger.has_failed)
        self.ranks.liveness.facts.hardware = partial(causes, self.health_snapshot, self.ledger.has_failed)
        self.tables = (
            Source("ranks", 50_000, self.ranks.timed_snapshot, families.families),
            Source("liveness", 10_000, self.ranks.timed_snapshot, liveness_families.families),
            Source("health", 50_000, self.health_snapshot, health.families),
        )
        self.running: dict[str, Running] = {}
        self.broken: frozenset[str] = frozenset()
        self._refused: dict[str, ExporterConfig] = {}
        self._begun = self._may_show = False
        self._started_at = clock.monotonic()
        self._ends: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._restore("health ledger", self._checks_section, self.ledger.load)
        self._boot_file = BootFile(state.directory, state.boot_id, self._state_thread)
        self._ran_before = self._boot_file.load(clock.time())

    # -- exporters -------------------------------------------------------------------------------------------------

    async def begin(self, plan: ExporterPlan, schedule: bool = True) -> None:
        """Start the enabled exporters.

        An exporter that fails to start counts as down (``broken``), and the other exporters run.
        """
        asyncio.get_running_loop().set_exception_handler(ignore_ended)
        self._take(plan)
        self.ranks.liveness.note_ran_before(self._ran_before, self._clock)
        started = {name: await self._start(prepared) for name, prepared in plan.enabled.items()}
        self._refused = {name: plan.enabled[name].config for name, running in started.items() if running is None}
        self.broken = frozenset({*plan.broken, *self._refused})
        self.running = {name: running for name, running in started.items() if running is not None}
        for running in self.running.values():
            if schedule:
                running.begin()
        self._begun = True

    async def apply(self, plan: ExporterPlan) -> bool:
        """Apply ``plan``.

        Exporters with an unchanged section keep running. If an exporter with a changed section does not start, and has
        not failed with this section before, the previous exporters run again and the result is False.
        """
        async with self._changing:
            return await self._apply(plan)

    async def _apply(self, plan: ExporterPlan) -> bool:
        wanted, current = plan.enabled, self.running
        changed = [name for name in wanted if name not in current or current[name].config != wanted[name].config]
        removed = [name for name in current if name not in wanted]
        old = {name: current.pop(name) for name in [*changed, *removed] if name in current}
        # In parallel: an exporter that ends slowly (RAS finishes its query) does not delay the other exporters.
        ends = [self._end(old[name]) for name in removed]
        replacements = await asyncio.gather(*(self._replace(old.get(name), wanted[name]) for name in changed))
        await asyncio.gather(*map(asyncio.shield, ends))
        started = dict(zip(changed, replacements, strict=True))
        refused = {name: wanted[name].config for name, running in started.items() if running is None}
        if any(self._refused.get(name) != config for name, config in refused.items()):
            await self._return_to(old, [running for running in replacements if running is not None])
            return False
        self.hardware.withdraw(self.running)
        self._take(plan)
        self._refused = refused
        self.broken = frozenset({*plan.broken, *refused})
        return True

    def _take(self, plan: ExporterPlan) -> None:
        self.counted = plan.counted
        self.ranks.job_id_variables = plan.job_id_variables
        self.ranks.liveness.thresholds = plan.thresholds

    async def update_once(self) -> None:
        """Wait for one update of every exporter, then assign the labels of all ranks (single pass)."""
        await asyncio.gather(*(running.update_once() for running in self.running.values()))
        self.ranks.observe_gpus(self.hardware)
        self.ranks.tick()

    async def stop(self) -> None:
        """Drain every exporter, including exporters that a reload was stopping, then write the last checkpoint."""
        if self._renewal is not None:
            self._renewal.cancel()
        await asyncio.gather(*(running.end() for running in self.running.values()), *self._ends)
        if not self._once:
            self._publish("rank table", self._ranks_section, self.ranks.dump)
            self._publish("health ledger", self._checks_section, self.ledger.dump)
            save = asyncio.get_running_loop().create_task(self._save())
            _, late = await asyncio.wait({save}, timeout=LAST_SAVE_SECONDS)
            if late:
                self._log.warning("the last checkpoint was not written within {seconds} s", seconds=LAST_SAVE_SECONDS)
        self._state_thread.stop()
        self._past.stop()

    def health_snapshot(self) -> health.HealthSnapshot:
        """Return a copy of the ranks, the checks and the GPU errors."""
        ranks = self.ranks.timed_snapshot()
        return health.HealthSnapshot(ranks, self.ledger.entries(), self.counted, self.hardware.faults())

    def ready(self) -> bool:
        """Return True once the first update of each running exporter succeeded, failed or is late."""
        return self._begun and all(running.looked or running.late for running in self.running.values())

    def has_looked(self, name: str) -> bool:
        """Return True once this exporter's first update succeeded or failed, or if there is no such exporter."""
        return self._begun and (name not in self.running or self.running[name].looked)

    def may_show(self) -> bool:
        """Return True once the agent has searched for processes, and has labelled the ranks that an environment names.

        FIRST_LOOK_SECONDS after the start, it becomes True in any case. A reload does not change the result.
        """
        if not self._may_show:
            is_late = self._clock.monotonic() >= self._started_at + FIRST_LOOK_SECONDS
            running = self.ranks.running().values()
            is_named = not any(process.slots is None and process.claim.rank is not None for process in running)
            self._may_show = is_late or (self.has_looked(PROCESS_EXPORTER) and is_named)
        return self._may_show

    # -- the tick --------------------------------------------------------------------------------------------------

    async def run(self, beat: Callable[[], object]) -> None:
        """Tick at 1 Hz and call ``beat`` after each tick. A checkpoint that hangs does not delay a tick."""
        saving: asyncio.Task[None] | None = None
        while True:
            self.ranks.observe_gpus(self.hardware)
            self.ranks.tick()
            self._past.tick()
            now = self._clock.monotonic()
            if now - self._saved_at >= SAVE_INTERVAL_SECONDS and (saving is None or saving.done()):
                self._publish("rank table", self._ranks_section, self.ranks.dump)
                self._publish("health ledger", self._checks_section, self.ledger.dump)
                self._saved_at = now
                if self._state.changed():
                    saving = asyncio.get_running_loop().create_task(self._save())
            self._renew_hung()
            self._boot_file.keep(self.ranks.liveness.running(self.ranks.processes.values()), self._clock.time())
            beat()
            await asyncio.sleep(TICK_SECONDS)

    def _publish(self, what: str, section: StateSection, dump: Callable[[], bytes]) -> None:
        """Publish a table for the checkpoint. If the table cannot be encoded, its previous section stays."""
        try:
            section.publish(dump())
        except Exception as error:  # noqa: BLE001  # for example text that cannot be encoded; counted and logged
            section.refused += 1
            self._log.error("the {what} cannot be saved, its last checkpoint stays", what=what, error=error)

    async def _save(self) -> None:
        draft = self._state.encode()
        written = await self._state_thread.call(lambda: self._state.write(draft))
        self._state.note(draft, written=written)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _start(self, prepared: Prepared) -> Running | None:
        name = prepared.spec.name
        lease = Lease(self._lender, name, prepared.spec.checkpoint_bytes)
        try:
            exporter = prepared.spec.build(prepared.config)
            await exporter.start(lease.context)
        except Exception as error:  # noqa: BLE001  # a broken exporter may raise any error
            self._log.error("exporter {exporter} did not start", exporter=name, error=error)
            await lease.close()
            return None
        return Running(prepared.spec, prepared.config, exporter, lease, self._clock)

    async def _replace(self, old: Running | None, prepared: Prepared) -> Running | None:
        """End the old run and start a new run; return None if the new run fails to start."""
        if old is not None:
            await asyncio.shield(self._end(old))
        running = await self._start(prepared)
        if running is not None:
            self.running[running.name] = running
            running.begin()
        return running

    def _renew_hung(self) -> None:
        """Replace each run whose thread hangs by a run that leaves out the source of the hung call."""
        hung = [(running, call) for running in self.running.values() if (call := running.hangs.hung()) is not None]
        if hung and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.get_running_loop().create_task(self._renew(hung))

    async def _renew(self, hung: Sequence[tuple[Running, WaitingCall]]) -> None:
        async with self._changing:
            for running, call in hung:
                if self.running.get(running.name) is running and running.hangs.leave_out(call):
                    del self.running[running.name]
                    self._log.warning(
                        "exporter {exporter} starts again, without a file system that hangs",
                        exporter=running.name,
                        path=call.path,
                    )
                    await self._renew_run(running, running)

    async def _renew_run(self, old: Running | None, before: Running) -> None:
        """Start the exporter of ``before`` with the same section; see ``_replace``. Without a start it is broken."""
        if await self._replace(old, Prepared(before.spec, before.config)) is None:
            self._refused[before.name] = before.config
            self.broken |= {before.name}

    def _end(self, running: Running) -> asyncio.Task[None]:
        """End a run in a task of its own: if the agent stops and cancels the reload, the task continues."""
        end = asyncio.get_running_loop().create_task(running.end(), name=f"end-{running.name}")
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return end

    async def _return_to(self, old: dict[str, Running], started: list[Running]) -> None:
        """Undo a failed reload: drain the new exporters and restart the previous exporters from their checkpoints."""
        for running in started:
            del self.running[running.name]
        await asyncio.gather(*(asyncio.shield(self._end(running)) for running in started))
        for running in old.values():
            await self._renew_run(None, running)
        self.hardware.withdraw(self.running)

    def _restore(self, what: str, section: StateSection, load: Callable[[bytes], None]) -> bool:
        """Load a section; log and return False if it is invalid."""
        if section.restored is None:
            return True
        try:
            load(section.restored)
        except Exception as error:  # noqa: BLE001  # damage can raise any error, and must not prevent the start
            self._log.warning("checkpoint of the {what} not readable, starting without it", what=what, error=error)
            return False
        return True
