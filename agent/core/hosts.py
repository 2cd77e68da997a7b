"""Texts as other programs read them: Slurm's lists of hosts such as ``n[004-006,008]``, and numbers in C. Pure."""

import re
from collections.abc import Iterable, Iterator

MAX_HOSTS = 65_536
"""A text that stands for more is not believed."""
MAX_TEXT_CHARACTERS = 1 << 20
MAX_BRACKETS = 8
"""Of one name. Slurm itself writes one pair, or one for each dimension of a torus."""
_MAX_DIGITS = 9
_RANGE = re.compile(rf"([0-9]{{1,{_MAX_DIGITS}}})(?:-([0-9]{{1,{_MAX_DIGITS}}}))?", re.ASCII)
_BRACKETS = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
MAX_DIGITS = 22
"""As many as 64 bits have in octal: what is longer is beyond them, as C finds."""
_DECIMAL = re.compile(r"\s*([+-]?)([0-9]*)", re.ASCII)
_ANY_BASE = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*|)", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names that ``text`` stands for, in its order; ValueError where it is no such text or names too many."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError("a list of hosts that is too long")
    hosts: list[str] = []
    for part in _parts(text):
        hosts += _names(part, MAX_HOSTS - len(hosts))
    return tuple(hosts)


def ranges(numbers: Iterable[int]) -> str:
    """Return the list that stands for these numbers (0 or more), such as ``0-3,7``: ascending, each once."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas that are in no brackets."""
    start, depth = 0, 0
    for index, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError("brackets that do not match")
        if character == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    if depth:
        raise ValueError("brackets that do not match")
    if text[start:].strip():
        yield text[start:].strip()


def _names(part: str, room: int) -> list[str]:
    """Return the names of one part: each prefix with each number of the brackets that follow it."""
    names = [""]
    if part.count("[") > MAX_BRACKETS:
        raise ValueError(f"more than {MAX_BRACKETS} pairs of brackets in one name")
    for prefix, inside in _BRACKETS.findall(part):
        tails = list(_inside(inside, room)) if inside else [""]
        if len(names) * len(tails) > room:
            raise ValueError(f"more than {MAX_HOSTS} hosts")
        names = [f"{name}{prefix}{tail}" for name in names for tail in tails]
    if "" in names or len(names) > room:
        raise ValueError("an empty name, or too many")
    return names


def _inside(text: str, room: int) -> Iterable[str]:
    """Return the numbers of one pair of brackets, as wide as they are written."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError("no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < room:
            raise ValueError(f"a range of more than {MAX_HOSTS} numbers, or one that falls")
        room -= last - first + 1
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


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
