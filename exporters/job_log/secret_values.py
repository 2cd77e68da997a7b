"""Finds the end of a named secret's value, and values that are harmless. Pure."""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    r"(?:none|null|nil|true|false|yes|no|undefined|''(?!')|\"\"(?!\")|\*{3,}|\[masked\]|<[a-z]{1,16}>|(?=[,;)\]}]))(?![\w./+=:@$-])"
    r"|(?:torch\.|tensor\b|<class|<function|/(?=\w))",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"[-+]?\d{1,3}(?![\w.:@$-])|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?[KMG]?\s{0,2}(?:ms|us|s|tokens?|keys?|%|/s)\b|\d+\.\d+(?![\w.])",
    re.IGNORECASE,
)
_COUNT = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?[KMG]?(?!\w)", re.IGNORECASE)
_OF_MODELS = re.compile(
    r"(?:missing|unexpected|query|q|k|kv|sort|dict|primary|foreign|cache|(?:pad|eos|bos|unk|mask|cls|sep)[_ ])[_ ]?$",
    re.IGNORECASE,
)
"""Names of keys and tokens in models and tables, not secrets."""
_QUOTED = re.compile(
    r"[bruf]{0,2}(\"\"\"|'''|\\{1,6}[\"']|[\"'`“‘«]|&(?:quot|apos|\#34|\#39);|%2[27]|\\u002[27])", re.IGNORECASE
)
_CLOSING = {"“": "”", "‘": "’", "«": "»"}
_WORD = re.compile(r"[^\s(\[{<]*")
_BRACKETS = re.compile(r"\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|[()\[\]{}]")
_COUNTED = ("tokens", "keys")
MAX_SLASHES = 64
"""Limit of checked backslashes before a quote in a quoted text."""


def is_harmless(line: str, name: re.Match[str], start: int, *, strong: bool) -> bool:
    """Return whether the value at ``start`` is empty, a path, a tensor, or a count of a weak name."""
    if start >= len(line) or line[start:].isspace() or _HARMLESS.match(line, start):
        return not (strong and line.startswith("/", start) and not name[0].lower().startswith("pwd"))
    if strong:
        return False
    if name[0].lower() in _COUNTED and _COUNT.match(line, start):
        return True
    return bool(_NUMBER.match(line, start) or _OF_MODELS.search(line, max(0, name.start() - 16), name.start()))


def end_of(line: str, start: int, *, is_text: bool) -> int:
    """Return the end of the value at ``start``. ``is_text``: without quotes it extends to the end of the line."""
    quoted = _QUOTED.match(line, start)
    if quoted is not None:
        return _end_of_quoted(line, quoted)
    if line[start] in "([{":
        return _end_of_brackets(line, start)
    if is_text:
        return len(line)
    end = start
    while True:
        end = _WORD.match(line, end).end()  # type: ignore[union-attr]  # also matches an empty text
        if end >= len(line) or line[end].isspace():
            return end
        end = _end_of_brackets(line, end) if line[end] in "([{" else end + 1


def _end_of_quoted(line: str, quoted: re.Match[str]) -> int:
    quote = quoted[1]
    closing = _CLOSING.get(quote, quote)
    at = quoted.end()
    while (at := line.find(closing, at)) >= 0:
        before = line[max(quoted.end(), at - MAX_SLASHES) : at]
        slashes = len(before) - len(before.rstrip("\\"))
        if slashes % 2 == 0:
            return at + len(closing)
        at += len(closing)
    return len(line)


def _end_of_brackets(line: str, start: int) -> int:
    depth = 0
    for match in _BRACKETS.finditer(line, start):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
            if depth == 0:
                return match.end()
    return len(line)
