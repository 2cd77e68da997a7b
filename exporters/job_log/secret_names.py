"""Secrets that are known by their names: a name that tells of one, whatever parts it from its value. Pure.

A value is a quoted text, all of a bracket, the text of an XML element, a word, or the rest of the line.
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
    """Return the line with ``mask`` in the place of the values of all names that tell of a secret."""
    line = _VALUE_FIRST.sub(rf"\1{mask}", line)
    parts: list[str] = []
    at = 0
    while (name := NAME.search(line, at)) is not None:
        value = _value_of(line, name)
        start, end = value or (name.end(), name.end())
        parts.append(line[at:start])
        if value is not None:
            parts.append(mask)
        at = max(end, name.end())
    return "".join((*parts, line[at:]))


def wants_more(line: str) -> bool:
    """Whether a line ends with the name of a secret, whose value then is the next line."""
    return _OPEN_END.search(line) is not None


def _value_of(line: str, name: re.Match[str]) -> tuple[int, int] | None:
    """Where the value of a name begins and ends; None where it has none, or a harmless one."""
    strong = name["strong"] is not None
    found = separated(line, name, strong=strong)
    if found is None or is_harmless(line, name, found.start, strong=strong):
        return None
    if found.until:
        end = line.find(found.until, found.start)
        return found.start, len(line) if end < 0 else end
    is_text = strong and ":" in line[name.end() : found.start]
    return found.start, end_of(line, found.start, is_text=is_text)
