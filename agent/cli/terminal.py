"""What commands share: text for a terminal without anything that it obeys, columns, JSON, and asking a Prometheus."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence

import msgspec

from agent.core import prometheus
from agent.core.hosts import ranges

NO_ANSWER = (OSError, ValueError, msgspec.MsgspecError)
"""What is raised where a Prometheus does not answer, or with something else than expected."""

_COLOURS = {"alive": "32", "finished": "32", "dead": "1;31", "unresponsive": "1;31"}
_ODD_COLOUR = "33"


def plain(text: str) -> str:
    """``text`` of a job's user, or of who answers in another's place, with all that a terminal obeys made to ``?``."""
    return "".join(character if character.isprintable() else "?" for character in text)


def as_json(value: object) -> str:
    """Return ``value`` as JSON, with all in its strings that a terminal obeys escaped."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def say(text: str) -> None:
    """Print a command's answer."""
    print(text)  # noqa: T201  # its answer


def refuse(command: str, why: str, status: int = 1) -> int:
    """Print on standard error why a command failed; return its exit status."""
    print(f"rankwatch {command}: {plain(why)}", file=sys.stderr)  # noqa: T201  # its answer
    return status


def no_answer(command: str, url: str, error: Exception) -> int:
    """Refuse because the Prometheus at ``url`` gave no answer."""
    return refuse(command, f"no answer from {prometheus.shown(url)}: {error}", 2)


def add_prometheus(parser: argparse.ArgumentParser, cluster: str = "where one Prometheus watches several") -> None:
    """Add the flags for a Prometheus and a cluster."""
    parser.add_argument("--prometheus", metavar="URL", required=True, help="as http://prometheus:9090")
    parser.add_argument("--cluster", metavar="NAME", help=cluster)


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
    names = set(ranks)
    numbered = {rank for rank in names if rank.isascii() and rank.isdecimal()}
    return ",".join(filter(None, (ranges(map(int, numbered)), *sorted(map(plain, names - numbered)))))


def has_colours(environ: Callable[[str], str | None] = os.environ.get) -> bool:
    """Return whether colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not environ("NO_COLOR")


def count(number: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
