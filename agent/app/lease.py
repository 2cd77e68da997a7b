"""Resources that the agent lends to one run of an exporter, and releases when the run ends."""

import asyncio
from dataclasses import dataclass, fields
from typing import Any

from agent.core.checkpoint import StateFile
from agent.core.clock import Clock
from agent.core.leased import Leased, LeaseEnded
from agent.core.log import FailureCounter, Logger
from agent.core.series_budget import Admission, SeriesBudget
from agent.core.threads import OwnThread
from agent.evidence.registry import EvidenceRegistry
from agent.export.exporter import Context, Roots
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.helper.client import Answer, Helper, Helpers, HelperSpec
from agent.ranks.table import RankTable
from agent.ranks.writer import RankWriter
from agent.tail.hang_guard import HangGuard, HungSources

HELPERS_SECONDS = 3.0
"""Longest wait for helpers to stop. A helper that hangs in the kernel is then abandoned."""


@dataclass(kw_only=True)
class Lender:
    """The agent's tables, checkpoint and helpers, which it lends to exporters."""

    roots: Roots
    clock: Clock
    hostname: str
    ranks: RankTable
    state: StateFile
    once: bool

    def __post_init__(self) -> None:
        self.series = SeriesBudget()
        self.helpers = Helpers(self.clock)
        self.hardware = Hardware()
        self.ledger = HealthLedger(self.clock)
        self.evidence = EvidenceRegistry()
        self.hung_sources = HungSources()


class Lease:
    """The lease of one exporter run.

    Writes after ``close`` raise, because an update of this run can still run when the next run is active.
    """

    def __init__(self, lender: Lender, name: str, checkpoint_bytes: int = 0) -> None:
        self._lender = lender
        self._threads: list[OwnThread] = []
        self._helpers: list[Helper[Any]] = []
        self.is_closed = False
        log = Logger(name)
        self.context = Context(
            roots=lender.roots,
            clock=lender.clock,
            hostname=lender.hostname,
            ranks=RankWriter(lender.ranks, name),
            state=lender.state.section(f"exporter {name}", checkpoint_bytes),
            admit=Admission(lender.series),
            thread=self._thread,
            helper=self._helper,
            checks=lender.ledger.of(name),
            hardware=lender.hardware.of(name),
            evidence=lender.evidence.of(name),
            exits=lender.ranks.liveness.facts.of(name),
            log=log,
            failures=FailureCounter(log),
            once=lender.once,
            hangs=HangGuard(lender.hung_sources),
        )

    async def close(self) -> None:
        """Close the writers, stop each thread after its current call, stop the helpers."""
        self.is_closed = True
        end_writers(self.context)
        self.context.hangs.close()
        for thread in self._threads:
            thread.stop()
        if self._helpers:
            stops = {asyncio.create_task(helper.stop()) for helper in self._helpers}
            self._helpers.clear()
            ended, late = await asyncio.wait(stops, timeout=HELPERS_SECONDS)
            errors = [error for stop in ended if (error := stop.exception()) is not None]
            if late:
                self.context.log.error("{late} helper processes did not end in time", late=len(late))
            for error in errors:
                self.context.log.error("a helper process could not be ended", error=error)

    def _thread(self, name: str) -> OwnThread:
        self.context.ranks.ensure_open()
        thread = OwnThread(name)
        self._threads.append(thread)
        return thread

    def _helper(self, spec: HelperSpec[Answer]) -> Helper[Answer]:
        self.context.ranks.ensure_open()
        helper = self._lender.helpers.lend(spec)
        self._helpers.append(helper)
        return helper


def end_writers(context: Context) -> None:
    """Close every lent writer."""
    for lent in (getattr(context, field.name) for field in fields(context)):
        if isinstance(lent, Leased):
            lent.close()


def ignore_ended(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle the exception of a task that no code awaits; ignore LeaseEnded, which is no error."""
    if not isinstance(context.get("exception"), LeaseEnded):
        loop.default_exception_handler(context)
