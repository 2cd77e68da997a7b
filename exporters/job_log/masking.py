"""Masks in a line of a log what has the shape of a secret. Pure.

A shape is all that tells a secret: one that looks like a word stays. Too much is masked rather than too little.
"""

from __future__ import annotations

import re

MASKED = "[masked]"
_NAME = r"[\w.-]{0,64}(?:key|token|secret|passw(?:or)?d|passphrase|pwd|credential|session(?:_?id)?|auth)s?"
_QUOTE = r"\\{0,4}[\"']?"
"""Strings in strings have backslashes before their quotes."""
_IS = r"\s{0,32}(?::=|=>|->|={1,3}|:|%3[ad])\s{0,32}"
_VALUE = r"(?:\\{1,4}[\"'].*?(?:\\{1,4}[\"']|$)|[bruf]{0,2}(?:\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?)|\S+)"
_MAKERS = (
    r"hf_|gh[pousr]_|github_pat_|gl[a-z]{2,6}-|sk-|nvapi-|xox[a-z]-|xapp-|AIza|ya29\.|GOCSPX-|(?:[spr]k|whsec)_(?:live_|test_)?|"
    r"dapi|hv[sbr]\.|dckr_[a-z]{2,4}_|npm_|pypi-|SG\.|shp[a-z]{2}_|lin_api_|dop_v1_|gsk_|r8_"
)
"""What tokens of well-known services begin with."""
_BASE64 = r"(?<![\w/+])(?=[a-z0-9+/]*\d)(?-i:(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z]))[a-z0-9+][a-z0-9+/]{39,}={0,2}"
"""No path: these begin with a slash, or have no digits and capitals, or other letters."""
_WHOLE = re.compile(r"\s*[A-Za-z0-9+/=_-]{40,}\s*")
"""A line of a key in PEM, say."""
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (rf"((?:authorization|cookie){_QUOTE}(?:{_IS}|,\s{{0,8}})).*", rf"\1{MASKED}"),
        (r"(\b(?:bearer|basic)\s{1,8})[\w.~+/=-]{8,}", rf"\1{MASKED}"),
        (r"(://)[^\s\"'<>]{1,512}@", rf"\1{MASKED}@"),
        (rf"({_NAME}(?:{_QUOTE}{_IS}|[\"'],\s{{0,8}})){_VALUE}", rf"\1{MASKED}"),
        (rf"((?:[_-]pass{_QUOTE}{_IS}|[\"']pass[\"']{_IS}|\bpass=)){_VALUE}", rf"\1{MASKED}"),
        (rf"(\b(?:sig|signature)(?:=|%3d)){_VALUE}", rf"\1{MASKED}"),
        (rf"(--{_NAME}\s{{1,8}}){_VALUE}", rf"\1{MASKED}"),
        (r"(\s(?:-u|--user|--proxy-user)[\s=]{1,8}[\"']?[^\s:\"']{1,64}:)\S+", rf"\1{MASKED}"),
        (r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?", MASKED),  # JWT
        (r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b", MASKED),  # AWS
        (rf"\b(?:{_MAKERS})[\w.-]{{12,}}", MASKED),
        (r"(hooks\.slack\.com/services/)\S+", rf"\1{MASKED}"),
        (r"\b\d{8,10}:[\w-]{30,}", MASKED),  # Telegram
        (r"(?<![\w/+=])[A-Za-z0-9/+=]{40}(?![\w/+=])", MASKED),  # AWS, without a name
        (_BASE64, MASKED),
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
