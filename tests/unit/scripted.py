"""Scripted exporters, and supervisors that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fake_clock import FakeClock

from agent.app.discovery import ExporterPlan, Prepared
from agent.app.supervisor import Supervisor
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.core.metrics import Metric
from agent.sdk.exporter import Context, ExporterConfig, Roots, Spec


class Section(ExporterConfig, frozen=True, kw_only=True):
    """The section of a scripted exporter: ``number`` makes sections differ; with ``refuse`` a start can fail."""

    number: int = 0
    refuse: bool = False


class Idle:
    """An exporter that does nothing."""

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx

    async def update(self) -> None:
        pass

    def snapshot(self) -> object:
        return None

    def families(self, snapshot: Any) -> Iterable[Metric]:
        return ()

    async def drain(self) -> None:
        pass


def plan(
    make: Callable[[str, Section], Idle], interval: float = 60.0, drain: float = 1.0, **sections: Section
) -> ExporterPlan:
    """Return exporters keyed by name, each built from its name and section."""

    def prepared(name: str, section: Section) -> Prepared:
        spec = Spec(
            name, Section, lambda section: make(name, section), interval, 0.05, (), drain, checkpoint_bytes=1024
        )
        return Prepared(spec, section)

    return ExporterPlan({name: prepared(name, section) for name, section in sections.items()}, ())


def state_file(directory: Path | None = None) -> StateFile:
    """Return the checkpoint file in this directory; without a directory, a checkpoint file that is never written."""
    return StateFile(directory and directory / "checkpoint", "boot", Logger("test"))


def supervisor(state: StateFile | None = None, clock: FakeClock | None = None) -> Supervisor:
    """Return a supervisor."""
    return Supervisor(clock or FakeClock(), "here", Roots(), state or state_file())
