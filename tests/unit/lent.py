"""The context that the agent passes to an exporter, for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rank_table import RankTable

from agent.core import series_budget
from agent.core.log import FailureCounter
from agent.evidence.registry import EvidenceRegistry
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import CheckState, Entry, HealthLedger
from agent.helper.client import Helpers
from agent.ranks.liveness.causes import ExitFacts
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Clock, Context, Logger, OwnThread, Roots, StateSection


class Admission(series_budget.Admission):
    """Admits series up to a limit."""

    def __init__(self, *limits: int, **named: int) -> None:
        super().__init__(series_budget.SeriesBudget(*limits, **named))

    @property
    def refused(self) -> int:
        return self._table.refused

    @property
    def taken(self) -> int:
        return self._table.shares.taken


async def stop_all(helpers: Helpers) -> None:
    """Stop every helper process, as the agent does when an exporter stops."""
    for helper in helpers.all():
        await helper.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true."""
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.001)


def failed(ledger: HealthLedger) -> list[Entry]:
    """Return the ledger's failed checks."""
    return [entry for entry in ledger.entries() if entry.finding.state is CheckState.FAILED]


def well(levels: Mapping[str, CheckState]) -> dict[str, bool]:
    """Return whether each check is OK."""
    return {check: state is CheckState.OK for check, state in levels.items()}


def children() -> list[str]:
    """Return the pids of this process's children (blocking)."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def lent(name: str, clock: Clock, root: Path | None = None, **changed: Any) -> Context:
    """Return a context for exporter ``name``, with its own tables and with the trees below ``root``.

    ``changed``: fields with other values: for ``hardware`` a Hardware, for ``ranks`` a RankTable."""
    fields: dict[str, Any] = {
        "roots": Roots() if root is None else Roots(root / "proc", root / "sys", root / "run"), "clock": clock,
        "hostname": "here", "ranks": RankTable(clock, "here"), "state": StateSection(name, None), "admit": Admission(),
        "thread": OwnThread, "helper": Helpers(clock).lend, "checks": HealthLedger(clock).of(name),
        "hardware": Hardware(), "evidence": EvidenceRegistry().of(name), "exits": ExitFacts().of(name),
        "log": Logger(name), "failures": FailureCounter(Logger(name)),
    }  # fmt: skip
    given = fields | changed
    lent = {"hardware": given["hardware"].of(name), "ranks": given["ranks"]}
    if isinstance(given["ranks"], RankTable):
        lent["ranks"] = RankWriter(given["ranks"], name)
    return Context(**(given | lent))
