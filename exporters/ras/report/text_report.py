"""The text report of NCCL 2.24 and later and of RCCL: a table of groups of like communicators, then paragraphs about
those in trouble. Ranks are named only while they are few, communicators only while something is wrong with them. Where
one communicator is the largest, its ranks are the job's. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping

from exporters.ras.report.model import MAX_COMMUNICATORS, Communicator, Report, ReportError, Skipped, accept
from exporters.ras.report.text_trouble import TroubleText
from exporters.ras.report.world import World, as_world, named_in

MAX_TROUBLES = 4 * MAX_COMMUNICATORS
"""Garbage of old versions takes places of its own: more are read than accepted."""

_BANNER = re.compile(r"[NR]CCL version (\d{1,3}(?:\.\d{1,3}){1,2}[0-9A-Za-z.+_-]{0,32}) compiled with ")
_RULE = re.compile(r"={6,20}$")
_GROUP = re.compile(
    r" *(?P<group>\d{1,7}) +(?P<count>\d{1,7}) +\d{1,7} +\d{1,7}(?:-\d{1,7})? +(?P<size>\d{1,9}) +-?\d{1,9}"
    r" +[A-Z]{2,10} +[A-Z,]{2,40}$"
)
_TROUBLE = re.compile(r"#(\d{1,7})-\d{1,7} \(([0-9a-f]{16})\) (INCOMPLETE|ERROR|MISMATCH)$")
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,64}) managing GPUs? ")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeouts? while gathering communicator data$")


def read_text(body: bytes) -> Report:
    """Read a report; ReportError when ``body`` is none, or was cut before its last heading."""
    lines = body.decode("ascii", "replace").splitlines()
    banner = _BANNER.match(lines[0]) if lines else None
    if banner is None:
        raise ReportError("no report: it does not begin with a version")
    sections = _sections(lines)
    if "Warnings" not in sections:
        raise ReportError("a report without its last heading", cut=True)
    skipped: Counter[Skipped] = Counter()
    sizes, counts = _groups(sections.get("Communicators", []))
    dead = _dead(sections.get("Errors", []))
    troubles = _troubles([*sections.get("Errors", []), *sections["Warnings"]], skipped)
    found = (each.communicator(name, sizes.get(each.group, -1), dead) for name, each in troubles.items())
    accepted = _with_ranks(accept(found, skipped), sizes, counts)
    skipped["unnamed"] += max(sum(counts.values()) - len(troubles), 0)
    timeouts = sum(int(match[1]) for line in sections["Warnings"] if (match := _TIMEOUTS.match(line)))
    return Report(banner[1], accepted, frozenset(), timeouts, dict(+skipped))


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines below each underlined heading; that of the communicators carries how long it took."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for above, line in zip(["", *lines], lines, strict=False):
        if _RULE.match(line) and above:
            current = sections.setdefault(above.partition(".")[0], [])
        else:
            current.append(line)
    return sections


def _groups(lines: list[str]) -> tuple[dict[int, int], dict[int, int]]:
    """Ranks per communicator of each group, and how many communicators it has."""
    rows = [match for line in lines if (match := _GROUP.match(line))]
    return {int(row["group"]): int(row["size"]) for row in rows}, {int(row["group"]): int(row["count"]) for row in rows}


def _with_ranks(
    found: tuple[Communicator, ...], sizes: Mapping[int, int], counts: Mapping[int, int]
) -> tuple[Communicator, ...]:
    """Name ranks as the largest communicator does, if there is one such: a text names no others of it."""
    largest = max(sizes.values(), default=0)
    world = World()
    if sum(counts[group] for group, size in sizes.items() if size == largest) != 1:
        return world.name(found)
    for each in found:
        if each.size == largest:
            world.see(largest, named_in(each))
    named = world.name(found)
    return tuple(as_world(each) if each.size == largest else each for each in named)


def _dead(lines: list[str]) -> set[tuple[str, str]] | None:
    """Pids and addresses of the processes listed under DEAD; None when there is no such paragraph."""
    if "DEAD" not in lines:
        return None
    listed = itertools.takewhile(bool, lines[lines.index("DEAD") :])
    return {(match[1], match[2]) for line in listed if (match := _PROCESS.match(line))}


def _troubles(lines: list[str], skipped: Counter[Skipped]) -> dict[str, TroubleText]:
    """What the paragraphs say of each communicator, by its hash."""
    troubles: dict[str, TroubleText] = {}
    current = None
    for line in lines:
        if match := _TROUBLE.match(line):
            current = troubles.get(match[2])
            if current is None and len(troubles) < MAX_TROUBLES:
                current = troubles[match[2]] = TroubleText(int(match[1]))
            elif current is None:
                skipped["surplus"] += 1
        elif line and not line.startswith(" "):
            current = None
        elif current is not None:
            current.take(line)
    return troubles
