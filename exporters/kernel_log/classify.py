"""What a line of the kernel's log means, by categories.yml. Pure, but for reading that file once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import yaml

_WORD = re.compile(r"%([a-z0-9]{1,16})%")


class Category(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of categories.yml, which says what each key means."""

    contains: str | list[str]
    patterns: list[str]
    subject: Literal["gpu", "nic", "node"] = "node"
    check: str = ""
    codes: list[str] = []
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

    ``pid`` may be the number of a thread; ``part`` is a server's or a file system's name.
    """

    category: str
    code: str
    pci: str
    pid: int
    part: str


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
                told = match.groupdict(default="")
                address, pid = _address(told.get("pci", "")), int(told.get("pid") or 0)
                return KernelEvent(each.name, told.get("code", ""), address, pid, told.get("part", ""))
    return None


def fails(event: KernelEvent, seconds: float) -> str:
    """The check that fails by an event that was told so long after the boot; empty when none does."""
    category = categories()[event.category]
    if seconds < category.after_boot_seconds or (category.codes and event.code not in category.codes):
        return ""
    return category.check


def _address(text: str) -> str:
    """NVIDIA's driver leaves out the function and may write eight digits of domain and capitals."""
    if not text:
        return ""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if "." in rest else f"{int(domain, 16):04x}:{rest}.0"
