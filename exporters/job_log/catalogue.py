"""Loads failure categories (categories.yml) and progress patterns (progress.yml), once per process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import yaml

Role = Literal["root", "cascade", "confirmation", "advice", "benign", "planned"]
Advice = Literal["restart", "restart_elsewhere", "fix_program", "fix_system"]
Kind = Literal["iteration", "checkpoint_begin", "checkpoint_end"]
ITERATION = "iteration"
MIN_ANCHOR_BYTES = 4  # A shorter ``contains`` of a site's own pattern would be in nearly every line
_WORD = re.compile(r"%([a-z0-9]{1,16})%")


class CategoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of categories.yml. The head of that file explains the keys."""

    category: str
    role: Role
    weak: bool = False
    contains: str | list[str]
    patterns: list[str]
    examples: list[str]


class ProgressPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pattern of progress.yml or of a site. Only a line with the text ``contains`` is matched with ``pattern``."""

    kind: Kind
    contains: Annotated[str, msgspec.Meta(min_length=MIN_ANCHOR_BYTES, max_length=64)]
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    examples: list[str] = []


class FailureCategories(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of categories.yml. ``deduced``: categories that only several lines together prove, each with its role.

    ``advice``: the remedy by root category, only where it is certain.
    """

    anchors: list[str]
    words: dict[str, str]
    entries: list[CategoryEntry]
    deduced: dict[str, Role]
    advice: dict[str, Advice]


class ProgressPatterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of progress.yml."""

    anchors: list[str]
    patterns: list[_BuiltIn]


class _BuiltIn(ProgressPattern, frozen=True, forbid_unknown_fields=True, kw_only=True):
    contains: str


class LineRule(NamedTuple):
    """Turns a line into an event: a category entry or a progress pattern. ``role`` is empty for progress."""

    category: str
    role: str
    weak: bool
    contains: tuple[bytes, ...]
    patterns: tuple[re.Pattern[bytes], ...]


class SearchedText(NamedTuple):
    """A short text that the matcher searches in all input.

    ``rules``: a bit for each rule whose ``contains`` has this text. ``last_only``: all these rules find iterations.
    """

    text: bytes
    rules: int
    last_only: bool


class Catalogue(NamedTuple):
    """All searched texts and rules. ``rules``: tried in this order, progress patterns first."""

    anchors: tuple[SearchedText, ...]
    rules: tuple[LineRule, ...]


@cache
def failures() -> FailureCategories:
    """Return categories.yml."""
    return msgspec.convert(_read("categories.yml"), FailureCategories)


@cache
def progress() -> ProgressPatterns:
    """Return progress.yml."""
    return msgspec.convert(_read("progress.yml"), ProgressPatterns)


def catalogue(site_patterns: Sequence[ProgressPattern] = ()) -> Catalogue:
    """Return the compiled catalogue. ``site_patterns``: tried first. Raise ValueError if invalid."""
    anchors = [*failures().anchors, *progress().anchors, *(pattern.contains for pattern in site_patterns)]
    rules = tuple(
        LineRule(
            entry.category,
            entry.role,
            entry.weak,
            tuple(word.encode() for word in ([entry.contains] if isinstance(entry.contains, str) else entry.contains)),
            tuple(_compiled(_filled(pattern)) for pattern in entry.patterns),
        )
        for entry in failures().entries
    )
    all_rules = (*rules_of_progress(site_patterns), *rules_of_progress(progress().patterns), *rules)
    return Catalogue(tuple(_anchor(text.encode(), all_rules) for text in dict.fromkeys(anchors)), all_rules)


def rules_of_progress(patterns: Sequence[ProgressPattern]) -> tuple[LineRule, ...]:
    """Return compiled progress patterns. Raise ValueError for an invalid pattern."""
    rules = tuple(
        LineRule(
            pattern.kind, "", weak=False, contains=(pattern.contains.encode(),), patterns=(_compiled(pattern.pattern),)
        )
        for pattern in patterns
    )
    for rule in rules:
        if rule.category == ITERATION and ITERATION not in rule.patterns[0].groupindex:
            raise ValueError("a pattern of iterations needs a group named iteration")
    return rules


def _anchor(text: bytes, rules: Sequence[LineRule]) -> SearchedText:
    leads_to = [number for number, rule in enumerate(rules) if any(text in word for word in rule.contains)]
    last_only = all(rules[number].category == ITERATION for number in leads_to)
    return SearchedText(text, sum(1 << number for number in leads_to), last_only)


def _filled(pattern: str) -> str:
    words = failures().words
    return _WORD.sub(lambda match: _WORD.sub(lambda inner: words[inner[1]], words[match[1]]), pattern)


def _compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None


def _read(name: str) -> object:
    return yaml.safe_load(Path(__file__).with_name(name).read_text())
