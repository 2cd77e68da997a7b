"""Masks in a line of a log what looks like a secret. Pure.

A secret shows by its own shape (``secret_shapes``) or by a name before it (``secret_names``). One that looks like a
word and has no name stays. Too much is masked rather than too little.
"""

from __future__ import annotations

import re

from exporters.job_log.secret_names import wants_more, without_named
from exporters.job_log.secret_shapes import MASKED, without_shapes
from exporters.job_log.unsteered import readings

_BEFORE_NAMES = re.compile(r"\s{0,64}")
_REST_OF_KEY = re.compile(r"\s{0,64}[A-Za-z0-9+/=]{1,128}\s{0,64}")


def masked(line: str, before: str = "") -> str:
    """Return ``line`` with MASKED where it holds what looks like a password, a token or a key.

    Control characters and what is not seen are gone. ``before``: the line before it, masked: it may end with a name,
    or be a line of a key.
    """
    if wants_more(before) and line.strip():
        return _BEFORE_NAMES.match(line)[0] + MASKED  # type: ignore[index]  # matches nothing, too
    if before.strip() == MASKED and _REST_OF_KEY.fullmatch(line):
        return MASKED
    found = [_masked(reading) for reading in readings(line)]
    return max(found, key=lambda text: text.count(MASKED))


def _masked(text: str) -> str:
    return without_named(without_shapes(text), MASKED)
