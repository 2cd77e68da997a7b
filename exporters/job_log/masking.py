"""Masks in a line of a log what looks like a secret, and removes what steers a terminal or is not seen. Pure.

A secret shows by its own shape (``secret_shapes``) or by a name before it, with any separator between name and value.
A value is a quoted text, the content of brackets, the text of an XML element, a word, or the rest of the line. One that
looks like a word and has no name stays. Too much is masked rather than too little.
"""

from __future__ import annotations

import re
import unicodedata

from exporters.job_log.secret_shapes import MASKED, without_shapes
from exporters.job_log.secret_values import end_of, is_harmless
from exporters.job_log.secret_words import NAME, QUOTE, STRONG, SUFFIX, VALUE_WORD, WEAK, separated

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours
    r"|\x1b[\]PX^_][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[ -/]{0,8}[0-~]?"
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m(?!\])"  # of a colour, whose first letter was lost
    r"|(?:\\x1b|\\0?33|\\e|\\u001b|\^\[)\[[\d;]{0,16}[mK]",  # the same, as a program printed its source
    re.IGNORECASE,
)
_UNSEEN = re.compile(
    "[\x01-\x07\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_BETWEEN = re.compile("[\x00\x0a-\x0d\x1c-\x1f\x85\u2028\u2029\ufffd]")
"""What may stand between two words, or within one: NUL ends a variable of an environment, a carriage return a line."""
MAX_GROWTH = 2
"""How much longer a line may be with its wide letters as plain ones: one letter can be eighteen."""
_BACKSPACE = "\b"
_VALUE_FIRST = re.compile(
    rf"\b({VALUE_WORD}[\"']?\s{{0,8}}[:=]\s{{0,8}})(?:\"[^\"]{{0,512}}\"|'[^']{{0,512}}')"
    rf"(?=,?\s{{0,8}}[\"']?(?:name|key|env)[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"'][\w.-]{{0,64}}?(?:{STRONG}|{WEAK}|_pass){SUFFIX}[\"'])",
    re.IGNORECASE,
)
_OPEN_END = re.compile(
    rf"(?:{STRONG}|[ _-](?:key|token)){SUFFIX}{QUOTE}{{0,2}}\s{{0,8}}[:=]\s{{0,8}}[|>]?[-+]?\s{{0,8}}$", re.IGNORECASE
)
_BEFORE_NAMES = re.compile(r"\s{0,64}")
_REST_OF_KEY = re.compile(r"\s{0,64}[A-Za-z0-9+/=]{1,128}\s{0,64}")


def masked(line: str, before: str = "") -> str:
    """Return ``line`` with MASKED where it holds what looks like a password, a token or a key.

    Control characters and what is not seen are gone. ``before``: the line before it, masked: it may end with a name,
    or be a line of a key.
    """
    if _OPEN_END.search(before) and line.strip():
        return _BEFORE_NAMES.match(line)[0] + MASKED  # type: ignore[index]  # matches nothing, too
    if before.strip() == MASKED and _REST_OF_KEY.fullmatch(line):
        return MASKED
    found = [_without_named(without_shapes(reading)) for reading in readings(line)]
    return max(found, key=lambda text: text.count(MASKED))


def _without_named(line: str) -> str:
    """Return the line with MASKED instead of the value of each name of a secret."""
    line = _VALUE_FIRST.sub(rf"\1{MASKED}", line)
    parts: list[str] = []
    position = 0
    while (name := NAME.search(line, position)) is not None:
        span = _value_of(line, name)
        start, end = span or (name.end(), name.end())
        parts.append(line[position:start])
        if span is not None:
            parts.append(MASKED)
        position = max(end, name.end())
    return "".join((*parts, line[position:]))


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


def readings(line: str) -> list[str]:
    """Return how a line can be read, the usual one first: more than one where a character may part words or not."""
    plain = line if line.isascii() else unicodedata.normalize("NFKC", line)
    text = _ESCAPES.sub("", plain if len(plain) <= MAX_GROWTH * len(line) else line)
    text = _UNSEEN.sub("", text)
    found = [_BETWEEN.sub(" ", text.replace(_BACKSPACE, ""))]
    if _BACKSPACE in text:
        found.append(_BETWEEN.sub(" ", _struck_over(text)))
    if _BETWEEN.search(text):
        found.append(_BETWEEN.sub("", text.replace(_BACKSPACE, "")))
    return found


def _struck_over(text: str) -> str:
    """The text as a terminal shows it, where a backspace takes back a letter."""
    shown: list[str] = []
    for letter in text:
        if letter != _BACKSPACE:
            shown.append(letter)
        elif shown:
            shown.pop()
    return "".join(shown)
