"""What the agent lends to an exporter, for tests of one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rank_table import RankTable

from agent.core import series_budget
from agent.core.log import Guard
from agent.evidence.board import EvidenceBoard
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import CheckState, Entry, HealthLedger
from agent.helper.client import Helpers
from agent.ranks.liveness.causes import ExitFacts
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Clock, Context, Logger, OwnThread, Roots, StateSection


class Admission(series_budget.Admission):
    """Room for series out of a budget of its own."""

    def __init__(self, *limits: int, **named: int) -> None:
        super().__init__(series_budget.SeriesBudget(*limits, **named))

    @property
    def refused(self) -> int:
        return self._table.refused

    @property
    def taken(self) -> int:
        return self._table.shares.taken


async def stop_all(helpers: Helpers) -> None:
    """End every helper process, as the agent does at the end of an exporter's run."""
    for helper in helpers.all():
        await helper.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that nothing signals."""
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.001)


def failed(ledger: HealthLedger) -> list[Entry]:
    """What the ledger holds that has failed."""
    return [entry for entry in ledger.entries() if entry.finding.state is CheckState.FAILED]


def well(levels: Mapping[str, CheckState]) -> dict[str, bool]:
    """By check: whether it is well."""
    return {check: state is CheckState.OK for check, state in levels.items()}


def children() -> list[str]:
    """This process' children (blocking)."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def lent(name: str, clock: Clock, root: Path | None = None, **changed: Any) -> Context:
    """Lend tables of its own to exporter ``name``, and the trees below ``root``.

    ``changed``: other fields; ``hardware`` is a whole Hardware, ``ranks`` a whole RankTable.
    """
    fields: dict[str, Any] = {
        "roots": Roots() if root is None else Roots(root / "proc", root / "sys", root / "run"), "clock": clock,
        "hostname": "here", "ranks": RankTable(clock, "here"), "state": StateSection(name, None), "admit": Admission(),
        "thread": OwnThread, "helper": Helpers(clock).lend, "checks": HealthLedger(clock).of(name),
        "hardware": Hardware(), "evidence": EvidenceBoard().of(name), "exits": ExitFacts().of(name),
        "log": Logger(name), "guard": Guard(Logger(name)),
    }  # fmt: skip
    given = fields | changed
    lent = {"hardware": given["hardware"].of(name), "ranks": given["ranks"]}
    if isinstance(given["ranks"], RankTable):
        lent["ranks"] = RankWriter(given["ranks"], name)
    return Context(**(given | lent))
