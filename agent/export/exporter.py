"""What an exporter is, and what the agent lends to it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from agent.core.checkpoint import StateSection
from agent.core.clock import Clock
from agent.core.leased import Leased
from agent.core.log import Guard, Logger
from agent.core.metrics import Family, Metric
from agent.core.series_budget import Admission
from agent.core.threads import OwnThread
from agent.evidence.board import Offers
from agent.hardware.inventory import HardwareSource
from agent.hardware.ledger import Checks
from agent.helper.client import LendHelper
from agent.ranks.liveness.causes import ExitFactsWriter
from agent.ranks.writer import RankWriter


class NoData(Exception):  # noqa: N818  # a signal, not an error: the source is not there
    """Raised by ``update`` when the source does not exist on this node."""


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every exporter's section of the configuration holds; each exporter extends it.

    ``enabled``: ``auto``: a missing source is not an error. True: it is.
    """

    enabled: bool | Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's file systems and the system's folders are; a recorded tree takes their place in tests."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    run: Path = Path("/run")
    log: Path = Path("/var/log")


class Note(Leased[None]):
    """What an operator should know of an exporter that works: what it may not see, and what helps. Empty: nothing."""

    def __init__(self) -> None:
        super().__init__(None)
        self.text = ""

    def say(self, text: str) -> None:
        """Replace it."""
        self.ensure_open()
        self.text = text


@dataclass(frozen=True, slots=True)
class Context:
    """What the agent lends to one exporter run. After its end each write raises LeaseEnded; reads go on.

    ``ranks`` has the snapshot of all ranks and takes what the exporter knows of them; ``admit`` gives room for series;
    ``thread`` makes a thread of the exporter's own for blocking calls, ``helper`` lends a process for those that can
    hang; ``checks`` takes what it finds wrong with the hardware, ``hardware`` what there is, ``evidence`` what it can
    add to a bundle, ``exits`` why ranks may have ended; with ``guard`` one odd piece of a source (a record, a process)
    costs itself alone; ``note`` is shown to operators; ``once`` is set for a single pass over recorded data (no
    streams, no state, all hosts' files).
    """

    roots: Roots
    clock: Clock
    hostname: str
    ranks: RankWriter
    state: StateSection
    admit: Admission
    thread: Callable[[str], OwnThread]
    helper: LendHelper
    checks: Checks
    hardware: HardwareSource
    evidence: Offers
    exits: ExitFactsWriter
    log: Logger
    guard: Guard
    once: bool = False
    note: Note = field(default_factory=Note)


class Exporter(Protocol):
    """One source. ``update`` runs on the event loop and never blocks it; see CONTRIBUTING.md."""

    async def start(self, ctx: Context) -> None:
        """Prepare; raise to refuse to start."""
        ...

    async def update(self) -> None:
        """Take one look at the source; raise NoData when it is not there. Never cancelled, never run twice at once."""
        ...

    def snapshot(self) -> object:
        """Return a frozen copy of the state, cheaply; called on the event loop."""
        ...

    def families(self, snapshot: Any) -> Iterable[Metric]:
        """Turn a snapshot into metric families: pure, on the render thread, no I/O."""
        ...

    async def drain(self) -> None:
        """Stop within ``Spec.drain_seconds`` and publish what the checkpoint must hold."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """What the agent must know of an exporter before it builds one; a module-level ``SPEC`` in each exporter.

    ``build`` takes the decoded ``config`` and must not touch the source. ``deadline_seconds``: an update that takes
    longer is late (marked and counted, not cancelled). ``series_cap``: more series than this are dropped and counted.
    ``checkpoint_bytes``: the limit of its section of the checkpoint; 0: it keeps none. ``keeps_past``: what it showed
    in the last minutes goes into bundles of evidence.
    """

    name: str
    config: type[ExporterConfig]
    build: Callable[[Any], Exporter]
    interval_seconds: float
    deadline_seconds: float
    families: tuple[Family, ...]
    drain_seconds: float = 5.0
    series_cap: int = 20_000
    checkpoint_bytes: int = 0
    keeps_past: bool = False
