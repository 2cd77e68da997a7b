"""Masks possible secrets in a log line, and removes terminal escapes and invisible characters. Pure.

A secret has a known shape (``secret_shapes``) or a name before it, with any separator between name and value.
A value is a quoted text, the content of brackets, the text of an XML element, a word, or the rest of the line. A value
that looks like a word and has no name stays. In doubt the module masks.
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
    r"|\[\d{1,3}(?:;\d{1,3}){0,4}m(?!\])"  # a colour without its escape character
    r"|(?:\\x1b|\\0?33|\\e|\\u001b|\^\[)\[[\d;]{0,16}[mK]",  # the same as escaped text
    re.IGNORECASE,
)
_UNSEEN = re.compile(
    "[\x01-\x07\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_BETWEEN = re.compile("[\x00\x0a-\x0d\x1c-\x1f\x85\u2028\u2029\ufffd]")
"""Characters that may separate words or stand within one. NUL ends an environment variable, CR a line."""
MAX_GROWTH = 2
"""Limit of growth by NFKC normalization. One character can become eighteen."""
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
    """Return ``line`` with MASKED in place of possible passwords, tokens and keys.

    Control characters and invisible characters are removed. ``before``: the masked previous line, which may end with
    the name of a secret or belong to the same key.
    """
    if _OPEN_END.search(before) and line.strip():
        return _BEFORE_NAMES.match(line)[0] + MASKED  # type: ignore[index]  # matches nothing, too
    if before.strip() == MASKED and _REST_OF_KEY.fullmatch(line):
        return MASKED
    candidates = [_without_named(without_shapes(reading)) for reading in readings(line)]
    return max(candidates, key=lambda text: text.count(MASKED))


def _without_named(line: str) -> str:
    """Return the line with MASKED in place of each named secret's value."""
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
    """Return start and end of a name's value; None if the name has no value or a harmless one."""
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
    """Return all readings of a line, the usual one first: some characters may or may not separate words."""
    plain = line if line.isascii() else unicodedata.normalize("NFKC", line)
    text = _ESCAPES.sub("", plain if len(plain) <= MAX_GROWTH * len(line) else line)
    text = _UNSEEN.sub("", text)
    variants = [_BETWEEN.sub(" ", text.replace(_BACKSPACE, ""))]
    if _BACKSPACE in text:
        variants.append(_BETWEEN.sub(" ", _struck_over(text)))
    if _BETWEEN.search(text):
        variants.append(_BETWEEN.sub("", text.replace(_BACKSPACE, "")))
    return variants


def _struck_over(text: str) -> str:
    """Return the text as a terminal shows it: a backspace deletes the character before it."""
    shown: list[str] = []
    for letter in text:
        if letter != _BACKSPACE:
            shown.append(letter)
        elif shown:
            shown.pop()
    return "".join(shown)
