"""Masks values by the name before them, such as password, with any separator between name and value. Pure.

A value is a quoted text, the content of brackets, the text of an XML element, a word, or the rest of the line.
"""

from __future__ import annotations

import re

from exporters.job_log.secret_separators import VALUE_WORD, separated
from exporters.job_log.secret_values import end_of, is_harmless
from exporters.job_log.secret_words import NAME, QUOTE, STRONG, SUFFIX, WEAK

_VALUE_FIRST = re.compile(
    rf"\b({VALUE_WORD}[\"']?\s{{0,8}}[:=]\s{{0,8}})(?:\"[^\"]{{0,512}}\"|'[^']{{0,512}}')"
    rf"(?=,?\s{{0,8}}[\"']?(?:name|key|env)[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"'][\w.-]{{0,64}}?(?:{STRONG}|{WEAK}|_pass){SUFFIX}[\"'])",
    re.IGNORECASE,
)
_OPEN_END = re.compile(
    rf"(?:{STRONG}|[ _-](?:key|token)){SUFFIX}{QUOTE}{{0,2}}\s{{0,8}}[:=]\s{{0,8}}[|>]?[-+]?\s{{0,8}}$",
    re.IGNORECASE,
)


def without_named(line: str, mask: str) -> str:
    """Return the line with ``mask`` instead of the value of each name of a secret."""
    line = _VALUE_FIRST.sub(rf"\1{mask}", line)
    parts: list[str] = []
    position = 0
    while (name := NAME.search(line, position)) is not None:
        span = _value_of(line, name)
        start, end = span or (name.end(), name.end())
        parts.append(line[position:start])
        if span is not None:
            parts.append(mask)
        position = max(end, name.end())
    return "".join((*parts, line[position:]))


def wants_more(line: str) -> bool:
    """Say whether a line ends with the name of a secret: the next line then is its value."""
    return _OPEN_END.search(line) is not None


def _value_of(line: str, name: re.Match[str]) -> tuple[int, int] | None:
    """Return where the value of a name begins and ends; None if it has none, or a harmless one."""
    strong = name["strong"] is not None
    value = separated(line, name, strong=strong)
    if value is None or is_harmless(line, name, value.start, strong=strong):
        return None
    if value.until:
        end = line.find(value.until, value.start)
        return value.start, len(line) if end < 0 else end
    is_text = strong and ":" in line[name.end() : value.start]
    return value.start, end_of(line, value.start, is_text=is_text)
