"""Finds the category of a line of the kernel's log (categories.yml), and reports events in the agent's own log."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import yaml

from agent.sdk.exporter import Logger
from agent.sdk.hardware import DriverReport, Judged, gpu_faults
from agent.sdk.system import pci_address
from exporters.kernel_log.gpu_errors import read_xid

XID = "xid"  # The value of ``fault`` in a category whose lines come from NVIDIA's driver
SEVERITIES = ("failed", "fatal")  # Severities of AMD's errors, each with a pattern group of its name

_AMD_CODES = ("ring_timeout", "eviction")
"""Pattern groups of AMD's categories: if a group matches, its name replaces the category's error code."""
_WORD = re.compile(r"%([a-z0-9]{1,16})%")
MAX_LOGGED = 10  # Limit of log lines per poll


class Category(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of categories.yml. The file's comments explain each key."""

    contains: str | list[str]
    patterns: list[str]
    subject: Literal["gpu", "nic", "node"] = "node"
    check: str = ""
    fault: str = ""
    after_boot_seconds: float = 0.0
    heals: list[str] = []
    examples: list[str]
    forged: list[str]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of categories.yml."""

    words: dict[str, str]
    quotes: list[str]
    categories: dict[str, Category]

    def compiled(self, pattern: str) -> re.Pattern[str]:
        """Return the pattern with each %word% replaced by its text."""
        return re.compile(_WORD.sub(lambda match: self.words[match[1]], pattern))


class KernelEvent(NamedTuple):
    """A line's category, and the code, PCI address (as sysfs writes it), pid and part that the line names.

    ``pid`` may be the number of a thread. ``part`` is the name of a server or a file system. ``gpu_error``: the GPU
    error in the line, else None. ``user``: the process's user id, -1 if unknown.
    """

    category: str
    code: str
    pci: str
    pid: int
    part: str
    gpu_error: DriverReport | None = None
    user: int = -1


class _Compiled(NamedTuple):
    name: str
    word: str
    patterns: tuple[re.Pattern[str], ...]


@cache
def _document() -> _Document:
    text = Path(__file__).with_name("categories.yml").read_text()
    return msgspec.convert(yaml.safe_load(text), _Document)


@cache
def categories() -> dict[str, Category]:
    """Return the categories by name, in the order of the file."""
    return dict(_document().categories)


@cache
def patterns(category: str) -> tuple[re.Pattern[str], ...]:
    """Return the category's patterns. A line of the category begins with a match of one of them."""
    return tuple(map(_document().compiled, categories()[category].patterns))


@cache
def _compiled() -> tuple[_Compiled, ...]:
    return tuple(
        _Compiled(name, word.lower(), patterns(name))
        for name, category in categories().items()
        for word in ([category.contains] if isinstance(category.contains, str) else category.contains)
    )


@cache
def _quotes() -> tuple[re.Pattern[str], ...]:
    return tuple(map(_document().compiled, _document().quotes))


def classify(text: str) -> KernelEvent | None:
    """Return the event that a line's beginning shows; None if no category matches or the line quotes a user's text."""
    lowered = text.lower()
    for compiled in _compiled():
        if compiled.word not in lowered:
            continue
        for pattern in compiled.patterns:
            if match := pattern.match(text):
                if any(quote.match(text) for quote in _quotes()):
                    return None
                named = match.groupdict(default="")
                address, pid = _address(named.get("pci", "")), int(named.get("pid") or 0)
                gpu_error = _gpu_error(
                    categories()[compiled.name], named, text[match.end("code") :] if "code" in named else ""
                )
                return KernelEvent(compiled.name, named.get("code", ""), address, pid, named.get("part", ""), gpu_error)
    return None


def judged(event: KernelEvent) -> Judged | None:
    """Return the meaning of the event's GPU error; None without a GPU error."""
    if event.gpu_error is None:
        return None
    return gpu_faults.judge("nvidia" if categories()[event.category].fault == XID else "amd", event.gpu_error)


def fails(event: KernelEvent, seconds: float) -> str:
    """Return the check that this event fails; empty if none. ``seconds``: the event's time after the boot."""
    category = categories()[event.category]
    if seconds < category.after_boot_seconds:
        return ""
    error = judged(event)
    return category.check if error is None else error.check


def _gpu_error(category: Category, named: Mapping[str, str], details: str) -> DriverReport | None:
    """Return the GPU error of a line from its named groups and, for an Xid, the text after its number (``details``)."""
    if category.fault == XID:
        return read_xid(named["code"], details)
    if not category.fault:
        return None
    code = next((name for name in _AMD_CODES if named.get(name)), category.fault)
    severity = next((name for name in SEVERITIES if named.get(name)), "")
    return DriverReport(code, unit=named.get("unit", ""), severity=severity)


def _address(text: str) -> str:
    """Return a PCI address as sysfs writes it; NVIDIA's driver omits the function. Empty without an address."""
    return pci_address(text if "." in text else f"{text}.0")


def log_events(log: Logger, events: Iterable[tuple[KernelEvent, Mapping[str, str], int]]) -> None:
    """Log each kind of event of a poll once, at most MAX_LOGGED kinds: recoveries as INFO, all others as WARNING.

    ``events``: each event, the log fields of its process's rank (empty without a rank), and its number of lines.
    """
    counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for event, rank, count in events:
        if categories()[event.category].heals:
            text = "the kernel's log reports a recovery: {category}"
        elif rank:
            text = "the kernel's log reports {category} for rank {rank} of job {job_id}, pid {pid}"
        else:
            text = "the kernel's log reports {category}"
        pid = str(event.pid) if rank else ""
        fields = {"category": event.category, "code": event.code, "pci": event.pci, "part": event.part, "pid": pid}
        if (error := judged(event)) is not None:
            fields |= {"meaning": error.fault.meaning, "action": error.fault.action}
        counts[text, tuple((fields | dict(rank)).items())] += count
    for (text, named), count in list(counts.items())[:MAX_LOGGED]:
        fields = {name: value for name, value in named if value}
        (log.info if categories()[fields["category"]].heals else log.warning)(text, **fields, count=count)
