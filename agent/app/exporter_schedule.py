"""The interval and the deadline of a running exporter: late and failed updates, and how long its series stay."""

import asyncio

from agent.app.lease import Lease
from agent.core.clock import Clock
from agent.core.leased import LeaseEnded
from agent.core.log import Logger
from agent.export.agent_families import ExporterStatus
from agent.export.exporter import Exporter, ExporterConfig, NoData, Spec
from agent.export.registry import Source
from agent.tail.hang_guard import HangGuard

REST_RATIO = 0.5
"""After a slow update, this part of an interval passes before the next update."""
STALE_INTERVALS = 3
STALE_FLOOR_SECONDS = 5.0
"""If a source fails, hangs or is absent, its series stay for three intervals (at least this time) plus the deadline of
an update."""
MAX_WHY_CHARACTERS = 200


class Running:
    """Runs ``exporter`` by its ``spec``. Updates are never cancelled and never overlap.

    Cancelling an update would leave its thread running, and could close a connection too early.
    """

    def __init__(self, spec: Spec, config: ExporterConfig, exporter: Exporter, lease: Lease, clock: Clock) -> None:
        self.spec = spec
        self.name = spec.name
        self.config = config
        self.exporter = exporter
        self._lease = lease
        self._clock = clock
        self._log = Logger(spec.name)
        self._schedule: asyncio.Task[None] | None = None
        self._rest: asyncio.Future[None] | None = None
        self._ending = False
        self.ok = False
        self.present = False
        self.looked = False
        self._failure = ""
        self.late = 0
        self.failures = 0
        self.last_duration_seconds = 0.0
        self.last_success_seconds: float | None = None
        self._last_success_at: float | None = None
        self.source = Source(spec.name, spec.series_cap, exporter.snapshot, exporter.families, self.shown)

    @property
    def why(self) -> str:
        """Return why the last update failed or found no source; else what the exporter cannot read, if anything."""
        return self._failure or self.hangs.why() or self._lease.context.note.text

    @property
    def remedy(self) -> str:
        """Return the remedy for ``why``; empty if the exporter knows none."""
        note = self._lease.context.note
        return note.remedy if self.why == note.text else ""

    @property
    def hangs(self) -> HangGuard:
        """Return the guard of the exporter's calls."""
        return self._lease.context.hangs

    def shown(self) -> bool:
        """Return True while the series are recent enough to be exported."""
        at, spec = self._last_success_at, self.spec
        seconds = max(STALE_INTERVALS * spec.interval_seconds, STALE_FLOOR_SECONDS) + spec.deadline_seconds
        return at is not None and self._clock.monotonic() - at <= seconds

    def begin(self) -> None:
        """Start the schedule."""
        self._schedule = asyncio.get_running_loop().create_task(self._run(), name=f"schedule-{self.name}")

    async def end(self) -> None:
        """Stop the schedule and drain the exporter within ``drain_seconds``. A running update gets at most half of this
        time; a hung update gets no time.

        The lease ends even if the drain fails or is late.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self.spec.drain_seconds
        self._ending = True
        if self._rest is not None:
            _wake(self._rest)
        if self._schedule is not None and self.hangs.hung() is None:
            await asyncio.wait({self._schedule}, timeout=self.spec.drain_seconds / 2)
        drain = loop.create_task(self.exporter.drain(), name=f"drain-{self.name}")
        try:
            await asyncio.wait({drain}, timeout=until - loop.time())
            self._note_drain(drain)
        finally:
            await self._lease.close()

    def _note_drain(self, drain: asyncio.Task[None]) -> None:
        if not drain.done():
            self._log.warning(
                "exporter {exporter} did not stop within {seconds} s",
                exporter=self.name,
                seconds=self.spec.drain_seconds,
            )
            drain.add_done_callback(_retrieve)
        # Cancelled: a task that the drain awaited was cancelled.
        elif (error := "cancelled" if drain.cancelled() else drain.exception()) is not None:
            self._log.error("exporter {exporter} failed while it was stopped", exporter=self.name, error=error)

    async def update_once(self) -> None:
        """Run one update to its end, however long it takes; mark it as late at its deadline."""
        started = self._clock.monotonic()
        late = asyncio.get_running_loop().call_later(self.spec.deadline_seconds, self._mark_late)
        error: BaseException | None = None
        try:
            await self.exporter.update()
        except asyncio.CancelledError as caught:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the loop is being closed
                raise
            error = caught  # a task that the exporter awaited was cancelled
        except Exception as caught:  # noqa: BLE001  # any error affects only this exporter; counted and logged
            error = caught
        finally:
            late.cancel()
        self.last_duration_seconds = self._clock.monotonic() - started
        self._note(error)

    def _mark_late(self) -> None:
        self.late += 1
        self.ok = False
        self._failure = f"an update takes longer than {self.spec.deadline_seconds} s"
        self._log.warning("exporter {exporter}: {why}", exporter=self.name, why=self._failure)

    def status(self) -> ExporterStatus:
        """Return the exporter's state for the agent's own families."""
        seconds, skipped = self.last_duration_seconds, self._lease.context.failures.skipped
        return ExporterStatus(self.name, self.ok, self.present, seconds, self.late, self.failures, skipped)

    def _note(self, error: BaseException | None) -> None:
        if isinstance(error, LeaseEnded) and self._lease.is_closed:  # the update ended after its exporter was drained
            return
        self.looked = True
        before, is_absent = self._failure, isinstance(error, NoData)
        kind = "its source is absent" if is_absent else type(error).__name__
        self._failure = "" if error is None else (str(error) or kind)[:MAX_WHY_CHARACTERS]
        if error is None:
            self.ok = self.present = True
            self.last_success_seconds = self._clock.time()
            self._last_success_at = self._clock.monotonic()
            return
        self.ok = is_absent and self.config.enabled != True  # noqa: E712  # "auto" is a true string
        self.present &= not is_absent
        self.failures += not is_absent
        if not self.ok and self._failure != before:  # an error that stays is logged once
            why = self._failure if is_absent else error
            self._log.error("an update of exporter {exporter} failed", exporter=self.name, error=why)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ending:
            began = self._clock.monotonic()
            await self.update_once()
            if not self._ending:
                rest = self._rest = loop.create_future()
                seconds = rest_seconds(self._clock.monotonic() - began, self.spec.interval_seconds)
                loop.call_later(seconds, _wake, rest)
                await rest


def _wake(rest: asyncio.Future[None]) -> None:
    if not rest.done():
        rest.set_result(None)


def rest_seconds(update_seconds: float, interval_seconds: float) -> float:
    """Return the pause after an update: the rest of its interval, but at least REST_RATIO of an interval.

    Missed updates are not repeated.
    """
    return max(interval_seconds - update_seconds, REST_RATIO * interval_seconds)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task that no code awaits: without this the event loop logs a warning."""
    if not task.cancelled():
        task.exception()
