"""What a line of the kernel's log means, by categories.yml. Pure, but for reading that file once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import yaml

from agent.sdk.hardware import Judged, Told, gpu_faults
from exporters.kernel_log.xid_lines import read_xid

XID = "xid"
"""What a category's ``fault`` is whose lines are NVIDIA's."""
SEVERITIES = ("failed", "fatal")
"""Of AMD's errors: the groups of a pattern that stand for one."""

_AMD_CODES = ("ring_timeout", "eviction")
"""The groups of a pattern that stand for an error of another code than its category's."""
_WORD = re.compile(r"%([a-z0-9]{1,16})%")


class Category(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of categories.yml, which says what each key means."""

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
        """The pattern with its words put in."""
        return re.compile(_WORD.sub(lambda found: self.words[found[1]], pattern))


class KernelEvent(NamedTuple):
    """What a line tells: its category, and what of code, PCI address (as sysfs writes it), pid and part it names.

    ``pid`` may be the number of a thread; ``part`` is a server's or a file system's name. ``told``: what it says of a
    GPU's error, None where it tells of none. ``user``: the process's user id, -1 where it is not known.
    """

    category: str
    code: str
    pci: str
    pid: int
    part: str
    told: Told | None = None
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
    """The categories by name, in their order."""
    return dict(_document().categories)


@cache
def patterns(category: str) -> tuple[re.Pattern[str], ...]:
    """What a line of the category begins with, one of these."""
    return tuple(map(_document().compiled, categories()[category].patterns))


@cache
def _compiled() -> tuple[_Compiled, ...]:
    return tuple(
        _Compiled(name, word.lower(), patterns(name))
        for name, each in categories().items()
        for word in ([each.contains] if isinstance(each.contains, str) else each.contains)
    )


@cache
def _quotes() -> tuple[re.Pattern[str], ...]:
    return tuple(map(_document().compiled, _document().quotes))


def classify(text: str) -> KernelEvent | None:
    """The event that a line tells of by what it begins with; None for nearly all, and for what quotes users."""
    lowered = text.lower()
    for each in _compiled():
        if each.word not in lowered:
            continue
        for pattern in each.patterns:
            if match := pattern.match(text):
                if any(quote.match(text) for quote in _quotes()):
                    return None
                named = match.groupdict(default="")
                address, pid = _address(named.get("pci", "")), int(named.get("pid") or 0)
                told = _told(categories()[each.name], named, text[match.end("code") :] if "code" in named else "")
                return KernelEvent(each.name, named.get("code", ""), address, pid, named.get("part", ""), told)
    return None


def judged(event: KernelEvent) -> Judged | None:
    """What the error of a GPU means that an event tells of; None where it is none."""
    if event.told is None:
        return None
    return gpu_faults.judge("nvidia" if categories()[event.category].fault == XID else "amd", event.told)


def fails(event: KernelEvent, seconds: float) -> str:
    """The check that fails by an event that was told so long after the boot; empty when none does."""
    category = categories()[event.category]
    if seconds < category.after_boot_seconds:
        return ""
    error = judged(event)
    return category.check if error is None else error.check


def _told(category: Category, named: Mapping[str, str], rest: str) -> Told | None:
    """What a line says of a GPU's error: its named groups, and what follows an Xid's number."""
    if category.fault == XID:
        return read_xid(named["code"], rest)
    if not category.fault:
        return None
    code = next((name for name in _AMD_CODES if named.get(name)), category.fault)
    severity = next((name for name in SEVERITIES if named.get(name)), "")
    return Told(code, unit=named.get("unit", ""), severity=severity)


def _address(text: str) -> str:
    """NVIDIA's driver leaves out the function and may write eight digits of domain and capitals."""
    if not text:
        return ""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if "." in rest else f"{int(domain, 16):04x}:{rest}.0"
