"""The categories and the patterns of progress, as categories.yml and progress.yml have them. Read once."""

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
MIN_ANCHOR_BYTES = 4
"""Shorter ones, in a site's own patterns, would be found everywhere."""
_WORD = re.compile(r"%([a-z0-9]{1,16})%")


class CategoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of categories.yml, which says what each key means."""

    category: str
    role: Role
    weak: bool = False
    contains: str | list[str]
    patterns: list[str]
    examples: list[str]


class ProgressPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pattern of progress.yml, or of a site: ``contains`` is searched for first, before the regular expression."""

    kind: Kind
    contains: Annotated[str, msgspec.Meta(min_length=MIN_ANCHOR_BYTES, max_length=64)]
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    examples: list[str] = []


class _Categories(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    anchors: list[str]
    words: dict[str, str]
    entries: list[CategoryEntry]
    deduced: dict[str, Role]
    advice: dict[str, Advice]


class _Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    anchors: list[str]
    patterns: list[_BuiltIn]


class _BuiltIn(ProgressPattern, frozen=True, forbid_unknown_fields=True, kw_only=True):
    contains: str


class LineRule(NamedTuple):
    """What makes an event of a line: one entry or pattern of progress. ``role`` is empty for progress."""

    category: str
    role: str
    weak: bool
    contains: tuple[bytes, ...]
    patterns: tuple[re.Pattern[bytes], ...]


class SearchedText(NamedTuple):
    """A few letters that are searched for in all the text. ``rules``: the bits of the rules that they can lead to.

    ``last_only``: these are of iterations alone, of which the last ones count.
    """

    text: bytes
    rules: int
    last_only: bool


class Catalogue(NamedTuple):
    """What a matcher looks for: ``rules`` in the order in which they are tried, those of progress first."""

    anchors: tuple[SearchedText, ...]
    rules: tuple[LineRule, ...]


@cache
def entries() -> tuple[CategoryEntry, ...]:
    """The entries of categories.yml, in their order."""
    return tuple(_categories().entries)


@cache
def deduced() -> dict[str, Role]:
    """The categories that several lines tell together, each with its role."""
    return dict(_categories().deduced)


@cache
def advice() -> dict[str, Advice]:
    """What helps where a category is the cause; those of which nothing is certain are left out."""
    return dict(_categories().advice)


@cache
def categories() -> tuple[str, ...]:
    """All categories, in the order in which they were first named."""
    return tuple(dict.fromkeys([*(entry.category for entry in entries()), *deduced()]))


def progress_patterns() -> tuple[ProgressPattern, ...]:
    """The patterns of progress.yml."""
    return tuple(_progress().patterns)


def catalogue(own: Sequence[ProgressPattern] = ()) -> Catalogue:
    """Compile everything; ``own``: a site's patterns of progress, tried first. ValueError where one makes no sense."""
    anchors = [*_categories().anchors, *_progress().anchors, *(one.contains for one in own)]
    rules = tuple(
        LineRule(
            entry.category,
            entry.role,
            entry.weak,
            tuple(word.encode() for word in _words(entry.contains)),
            tuple(_compiled(_filled(pattern)) for pattern in entry.patterns),
        )
        for entry in entries()
    )
    found = (*rules_of_progress(own), *rules_of_progress(progress_patterns()), *rules)
    return Catalogue(tuple(_anchor(text.encode(), found) for text in dict.fromkeys(anchors)), found)


def rules_of_progress(patterns: Sequence[ProgressPattern]) -> tuple[LineRule, ...]:
    """Compile patterns of progress; ValueError for one that makes no sense."""
    rules = tuple(
        LineRule(one.kind, "", weak=False, contains=(one.contains.encode(),), patterns=(_compiled(one.pattern),))
        for one in patterns
    )
    for rule in rules:
        if rule.category == ITERATION and ITERATION not in rule.patterns[0].groupindex:
            raise ValueError("a pattern of iterations needs a group named iteration")
    return rules


def _anchor(text: bytes, rules: Sequence[LineRule]) -> SearchedText:
    leads_to = [number for number, rule in enumerate(rules) if any(text in word for word in rule.contains)]
    last_only = all(rules[number].category == ITERATION for number in leads_to)
    return SearchedText(text, sum(1 << number for number in leads_to), last_only)


def _words(contains: str | list[str]) -> list[str]:
    return [contains] if isinstance(contains, str) else contains


def _filled(pattern: str) -> str:
    words = _categories().words
    return _WORD.sub(lambda found: _WORD.sub(lambda inner: words[inner[1]], words[found[1]]), pattern)


def _compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        return re.compile(pattern.encode())
    except re.error as error:
        raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None


@cache
def _categories() -> _Categories:
    return msgspec.convert(_read("categories.yml"), _Categories)


@cache
def _progress() -> _Progress:
    return msgspec.convert(_read("progress.yml"), _Progress)


def _read(name: str) -> object:
    return yaml.safe_load(Path(__file__).with_name(name).read_text())
