"""Parse host lists in Slurm's notation (``n[004-006,008]``), and numbers as C does. Pure."""

import re
from collections.abc import Iterable, Iterator

MAX_HOSTS = 65_536
"""Limit of hosts in a list; a longer list is refused."""
MAX_TEXT_CHARACTERS = 1 << 20
MAX_BRACKETS = 8
"""Limit of bracket pairs in one name. Slurm writes one pair, or one per dimension of a torus."""
MAX_NAME_CHARACTERS = 255
"""Limit of a name before its last number: a longer name with a range would be copied up to MAX_HOSTS times."""
_MAX_DIGITS = 9
_RANGE = re.compile(rf"([0-9]{{1,{_MAX_DIGITS}}})(?:-([0-9]{{1,{_MAX_DIGITS}}}))?", re.ASCII)
_BRACKETS = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
MAX_DIGITS = 22
"""Octal digits of a 64-bit number. A longer number, which overflows in C, is cut."""
_DECIMAL = re.compile(r"\s*([+-]?)([0-9]*)", re.ASCII)
_ANY_BASE = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*|)", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a host list, in order; raises ValueError if the list is invalid or too long."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError("a list of hosts that is too long")
    hosts: list[str] = []
    for part in _parts(text):
        hosts += _names(part, MAX_HOSTS - len(hosts))
    return tuple(hosts)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers (0 or more) as a list such as ``0-3,7``: ascending and distinct."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets."""
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
    """Return the names of one part: each prefix with each number in the following brackets."""
    names = [""]
    if part.count("[") > MAX_BRACKETS:
        raise ValueError(f"more than {MAX_BRACKETS} pairs of brackets in one name")
    for prefix, inside in _BRACKETS.findall(part):
        if len(names[0]) + len(prefix) > MAX_NAME_CHARACTERS:
            raise ValueError(f"a name of more than {MAX_NAME_CHARACTERS} characters")
        tails = list(_inside(inside, room)) if inside else [""]
        if len(names) * len(tails) > room:
            raise ValueError(f"more than {MAX_HOSTS} hosts")
        names = [f"{name}{prefix}{tail}" for name in names for tail in tails]
    if "" in names or len(names) > room:
        raise ValueError("an empty name, or too many names")
    return names


def _inside(text: str, room: int) -> Iterable[str]:
    """Yield the numbers of one pair of brackets, with their leading zeros."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError("no range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < room:
            raise ValueError(f"a range of more than {MAX_HOSTS} numbers, or a falling range")
        room -= last - first + 1
        yield from (str(number).zfill(len(match[1])) for number in range(first, last + 1))


def atoi(text: str) -> int:
    """Return the decimal number at the start of ``text``; 0 if there is none."""
    match = _DECIMAL.match(text)
    return 0 if match is None else _number(match[1], match[2], 10)


def strtoll(text: str) -> int:
    """Return the decimal, octal (0...) or hexadecimal (0x...) number at the start of ``text``; 0 if there is none."""
    match = _ANY_BASE.match(text)
    if match is None:
        return 0
    digits = match[2].lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    return _number(match[1], digits.removeprefix("0x"), base)


def _number(sign: str, digits: str, base: int) -> int:
    number = int(digits.lstrip("0")[:MAX_DIGITS] or "0", base)
    return -number if sign == "-" else number
