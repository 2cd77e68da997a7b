"""Text for a terminal: cells without anything that it obeys, and columns of them."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from agent.core.hosts import ranges

_COLOURS = {"alive": "32", "finished": "32", "dead": "1;31", "unresponsive": "1;31"}
_ODD_COLOUR = "33"


def plain(text: str) -> str:
    """``text`` of a job's user, or of who answers in another's place, with all that a terminal obeys made to ``?``."""
    return "".join(each if each.isprintable() else "?" for each in text)


def plain_json(text: str) -> str:
    """Return the same JSON, with all in its strings that a terminal obeys escaped."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]], state: int, *, colour: bool) -> list[str]:
    """Lines of equal columns; cells are made plain. ``state``: the column that is coloured by what it says."""
    lines = [list(head), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = []
    for number, line in enumerate(lines):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        if colour and number:
            padded[state] = f"\x1b[{_COLOURS.get(line[state], _ODD_COLOUR)}m{padded[state]}\x1b[0m"
        shown.append("  ".join(padded).rstrip())
    return shown


def rank_set(ranks: Iterable[str]) -> str:
    """Ranks in sets of numbers, as ``0-3,7``; those without a number follow, by name."""
    found = set(ranks)
    numbered = {rank for rank in found if rank.isascii() and rank.isdecimal()}
    return ",".join(filter(None, (ranges(map(int, numbered)), *sorted(map(plain, found - numbered)))))


def has_colours(environ: Callable[[str], str | None] = os.environ.get) -> bool:
    """Return whether colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not environ("NO_COLOR")


def count(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
