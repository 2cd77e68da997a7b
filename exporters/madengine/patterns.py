"""What a line of a run's output means to madengine, by patterns.yml. Pure, but for reading that file once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import yaml

MAX_LINE_CHARACTERS = 4096
"""What lies beyond is not looked at."""


class FailurePattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a line that fails a run."""

    name: str
    contains: str
    examples: list[str]


class BenignPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line that fails no run: it holds a part, or fits a regular expression."""

    contains: str = ""
    pattern: str = ""
    examples: list[str]


class PatternFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole of patterns.yml."""

    failures: list[FailurePattern]
    benign: list[BenignPattern]


@cache
def patterns() -> PatternFile:
    """The patterns in their order."""
    text = Path(__file__).with_name("patterns.yml").read_text()
    return msgspec.convert(yaml.safe_load(text), PatternFile)


@cache
def _benign() -> tuple[tuple[str, ...], tuple[re.Pattern[str], ...]]:
    found = patterns().benign
    words = tuple(each.contains for each in found if each.contains)
    return words, tuple(re.compile(each.pattern, re.ASCII) for each in found if each.pattern)


@cache
def _failures() -> tuple[tuple[str, str], ...]:
    return tuple((each.contains, each.name) for each in patterns().failures)


def read_failure(line: str) -> str:
    """The name of the failure that a line tells of; empty for nearly all, and for benign ones."""
    text = line[:MAX_LINE_CHARACTERS]
    name = next((name for word, name in _failures() if word in text), "")
    if not name:
        return ""
    words, expressions = _benign()
    is_benign = any(word in text for word in words) or any(each.search(text) for each in expressions)
    return "" if is_benign else name
