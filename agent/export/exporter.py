"""The interface of exporters, and the resources that the agent lends to them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from agent.core.checkpoint import StateSection
from agent.core.clock import Clock
from agent.core.leased import Leased
from agent.core.log import FailureCounter, Logger
from agent.core.metrics import Family, Metric
from agent.core.series_budget import Admission
from agent.core.threads import OwnThread
from agent.evidence.registry import Offers
from agent.hardware.inventory import HardwareSource
from agent.hardware.ledger import Checks
from agent.helper.client import LendHelper
from agent.ranks.liveness.causes import ExitFactsWriter
from agent.ranks.writer import RankWriter
from agent.tail.hang_guard import HangGuard

HARDWARE_RIGHTS = "rankwatch-setup --with-hardware"
"""The remedy for missing rights to hardware and the kernel's log."""


class NoData(Exception):  # noqa: N818  # a signal, not an error: the source is absent
    """Raised by ``update`` when the source does not exist on this node."""


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every exporter's section of the configuration.

    ``enabled``: if ``auto``, a missing source is not an error; if True, it is an error.
    """

    enabled: bool | Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class Roots:
    """Paths of the kernel's file systems and the system's directories; tests use recorded trees instead."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    run: Path = Path("/run")
    log: Path = Path("/var/log")


class Note(Leased[None]):
    """A note to operators: what the exporter cannot read, and the remedy, such as a command; both may be empty.

    ``remedy``: nothing that a user wrote; `rankwatch doctor` prints it for operators to run.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.text = self.remedy = ""

    def say(self, text: str, remedy: str = "") -> None:
        """Replace the note."""
        self.ensure_open()
        self.text, self.remedy = text, remedy


@dataclass(frozen=True, slots=True)
class Context:
    """Resources that the agent lends to one exporter run. After the run, writes raise LeaseEnded and reads still work.

    ``ranks``: reads the rank table and adds evidence. ``admit``: reserves series. ``thread``: makes a thread for
    blocking calls. ``helper``: lends a process for calls that may hang. ``checks``: takes findings about hardware.
    ``hardware``: takes the hardware's inventory. ``evidence``: takes functions that make parts of bundles. ``exits``:
    takes causes of ranks' exits. ``failures``: limits an error to one item of a source (a record, a process). ``note``:
    shown to operators. ``hangs``: leaves out file systems that hang. ``once``: a single pass over recorded data (no
    streams, no state, files of all hosts).
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
    failures: FailureCounter
    once: bool = False
    note: Note = field(default_factory=Note)
    hangs: HangGuard = field(default_factory=HangGuard)


class Exporter(Protocol):
    """An exporter of one source. ``update`` runs on the event loop and never blocks it; see CONTRIBUTING.md."""

    async def start(self, ctx: Context) -> None:
        """Prepare; raise any exception to refuse the start."""
        ...

    async def update(self) -> None:
        """Read the source once; raise NoData if it is absent. The agent never cancels a call; calls never overlap."""
        ...

    def snapshot(self) -> object:
        """Return a frozen copy of the state quickly; called on the event loop."""
        ...

    def families(self, snapshot: Any) -> Iterable[Metric]:
        """Return the metric families of a snapshot: pure, on the render thread, no I/O."""
        ...

    async def drain(self) -> None:
        """Stop within ``Spec.drain_seconds`` and publish the checkpoint's section."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """Description of an exporter before it is built; each exporter module has one as ``SPEC``.

    ``build``: takes the decoded ``config``; it must not touch the source. ``deadline_seconds``: a longer update is late
    (marked and counted, not cancelled). ``series_cap``: limit of series; series above it are dropped and counted.
    ``checkpoint_bytes``: limit of the exporter's section of the checkpoint; 0 for none. ``keeps_past``: bundles of
    evidence contain the exporter's series of the last minutes.
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
