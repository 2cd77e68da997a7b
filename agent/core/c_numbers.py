"""Numbers in environment variables as C programs read them: with atoi, or with strtoll and base 0. Pure."""

import re

MAX_DIGITS = 22
"""As many as 64 bits have in octal: what is longer is beyond them, as C finds."""
_DECIMAL = re.compile(r"\s*([+-]?)([0-9]*)", re.ASCII)
_ANY_BASE = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*|)", re.ASCII)


def atoi(text: str) -> int:
    """Return the decimal number that ``text`` begins with; 0 when it begins with none."""
    match = _DECIMAL.match(text)
    return 0 if match is None else _number(match[1], match[2], 10)


def strtoll(text: str) -> int:
    """Return the decimal, octal (0...) or hexadecimal (0x...) number that ``text`` begins with; 0 when it is none."""
    match = _ANY_BASE.match(text)
    if match is None:
        return 0
    digits = match[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return _number(match[1], digits.removeprefix("0x"), base)


def _number(sign: str, digits: str, base: int) -> int:
    number = int(digits.lstrip("0")[:MAX_DIGITS] or "0", base)
    return -number if sign == "-" else number
