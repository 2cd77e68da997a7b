"""Shared code of commands: text without terminal control characters, columns, JSON, errors of Prometheus."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence

import msgspec

from agent.core import prometheus
from agent.core.hosts import ranges

_COLOURS = {"alive": "32", "finished": "32", "dead": "1;31", "unresponsive": "1;31"}
_ODD_COLOUR = "33"


def plain(text: str) -> str:
    """Return untrusted ``text`` with ``?`` for every unprintable character: a terminal can obey such characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def as_json(value: object) -> str:
    """Return ``value`` as JSON with the unprintable characters in its strings escaped."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return "".join(
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1] for character in text
    )


def say(text: str) -> None:
    """Print a command's answer."""
    print(text, flush=True)  # noqa: T201  # the command's output


def refuse(command: str, why: str, status: int = 1) -> int:
    """Print on standard error why a command failed; return the exit status."""
    print(f"rankwatch {command}: {plain(why)}", file=sys.stderr)  # noqa: T201  # its answer
    return status


def no_answer(command: str, url: str, error: Exception) -> int:
    """Report that the Prometheus at ``url`` gave no answer; return exit status 2."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return refuse(command, f"no answer from {prometheus.shown(url)}: {why}", 2)


def add_prometheus(parser: argparse.ArgumentParser, cluster: str = "if one Prometheus watches several") -> None:
    """Add the flags for a Prometheus and a cluster."""
    missing = "needs --prometheus URL; without Prometheus: rankwatch status --job ID (only this node)"
    given = lambda url: url or parser.error(missing)  # noqa: E731
    parser.add_argument("--prometheus", metavar="URL", default="", type=given, help="such as http://prometheus:9090")
    parser.add_argument("--cluster", metavar="NAME", help=cluster)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]], state: int, *, colour: bool) -> list[str]:
    """Return lines with aligned columns and plain cells. ``state``: index of the column coloured by its value."""
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
    """Return ranks as sets of numbers, such as ``0-3,7``, then the names of ranks without a number."""
    names = set(ranks)
    numbered = {rank for rank in names if rank.isascii() and rank.isdecimal()}
    return ",".join(filter(None, (ranges(map(int, numbered)), *sorted(map(plain, names - numbered)))))


def has_colours() -> bool:
    """Return True if colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def count(number: int, what: str) -> str:
    """Return a number with its noun: ``1 rank``, ``2 ranks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
