"""Masks in a line of a log what has the shape of a secret. Pure.

A shape is all that tells a secret: one that looks like a word stays. Too much is masked rather than too little.
"""

from __future__ import annotations

import re

MASKED = "[masked]"
_NAME = r"[\w.-]{0,64}(?:key|token|secret|passw(?:or)?d|passphrase|credential|cookie|auth)s?"
_VALUE = r"(?:\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|\S+)"
_WHOLE = re.compile(r"\s*[A-Za-z0-9+/=_-]{40,}\s*")
"""A line of a key in PEM, say."""
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"(authorization[\"']?\s{0,8}[=:]).*", rf"\1 {MASKED}"),
        (r"(\b(?:bearer|basic)\s{1,8})[\w.~+/=-]{8,}", rf"\1{MASKED}"),
        (r"(://)[^/\s@]{1,256}@", rf"\1{MASKED}@"),
        (rf"({_NAME}[\"']?\s{{0,8}}[=:]\s{{0,8}}){_VALUE}", rf"\1{MASKED}"),
        (rf"(--{_NAME}\s{{1,8}}){_VALUE}", rf"\1{MASKED}"),
        (r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", MASKED),  # JWT
        (r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", MASKED),  # AWS
        (r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|nvapi-|xox[a-z]-)[\w-]{12,}", MASKED),
        (r"(?<![\w/+=])[A-Za-z0-9/+=]{40}(?![\w/+=])", MASKED),  # AWS, without a name
        (r"[A-Za-z0-9+=_-]{40,}", MASKED),
    )
)


def masked(line: str) -> str:
    """Return ``line`` with MASKED where it holds what looks like a password, a token or a key."""
    if _WHOLE.fullmatch(line):
        return MASKED
    for shape, replacement in _SHAPES:
        line = shape.sub(replacement, line)
    return line
