"""The text report of NCCL 2.24 and later and of RCCL: a table of groups of like communicators, then paragraphs about
those in trouble. Ranks are named only while they are few, communicators only while something is wrong with them. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter

from exporters.ras.report import (
    MAX_COMMUNICATORS,
    MAX_DEVICE,
    Communicator,
    MissingRank,
    Reason,
    Report,
    ReportError,
    Skipped,
    accept,
    plain_address,
)

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
_MISSING = re.compile(r"  Missing communicator data from (\d{1,9}) ranks?$")
_BARE_RANKS = re.compile(r"  The missing ranks?: (-?\d{1,10}(?:,-?\d{1,10})*)$")
_PLACE = (
    r"-- (?:GPU (?P<cuda>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))?"
    r" managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})|\[process information not found\])$"
)
_RANK = re.compile(rf"  Rank (?P<rank>-?\d{{1,10}}) {_PLACE}")
_BARE_RANK = re.compile(r"(?P<rank>-?\d{1,10})")
_NO_COMMUNICATORS = re.compile(r"  (\d{1,9}) ranks have status NOCOMM$")
_NO_COMMUNICATOR = re.compile(rf"  Rank (?P<rank>-?\d{{1,10}}) has status NOCOMM {_PLACE}")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeouts? while gathering communicator data$")


class _Trouble:
    """What the paragraphs about one communicator say; ``bare``: ranks by number alone (2.24 and 2.25)."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.silent = 0
        self.left = 0
        self.bare = False
        self.ranks: list[tuple[re.Match[str], Reason]] = []
        self._listing: Reason | None = None

    def take(self, line: str) -> None:
        """Add a line: a count, then perhaps the ranks it counts, one a line. Other counts' ranks are no concern."""
        if match := _MISSING.match(line):
            self.silent += int(match[1])
            self._listing = "unresponsive"
        elif match := _NO_COMMUNICATORS.match(line):
            self.left += int(match[1])
            self._listing = "no_communicator"
        elif match := _BARE_RANKS.match(line):
            self.bare = True
            self.ranks += [(each, "unknown") for each in _BARE_RANK.finditer(match[1])]
        elif match := _NO_COMMUNICATOR.match(line):
            self.left += 1
            self.ranks.append((match, "no_communicator"))
        elif not (match := _RANK.match(line)):
            self._listing = None
        elif self._listing is not None:
            self.ranks.append((match, self._listing))


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
    sizes, communicators = _groups(sections.get("Communicators", []))
    dead = _dead(sections.get("Errors", []))
    troubles = _troubles([*sections.get("Errors", []), *sections["Warnings"]], skipped)
    found = (_communicator(name, each, sizes.get(each.group, -1), dead) for name, each in troubles.items())
    accepted = accept(found, skipped)
    skipped["unnamed"] += max(communicators - len(troubles), 0)
    timeouts = sum(int(match[1]) for line in sections["Warnings"] if (match := _TIMEOUTS.match(line)))
    return Report(banner[1], accepted, frozenset(), timeouts, dict(+skipped))


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """The lines below each underlined heading; that of the communicators carries how long it took."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for above, line in zip(["", *lines], lines, strict=False):
        if _RULE.match(line) and above:
            current = sections.setdefault(above.partition(".")[0], [])
        else:
            current.append(line)
    return sections


def _groups(lines: list[str]) -> tuple[dict[int, int], int]:
    """Ranks per communicator of each group, and how many communicators there are in all groups."""
    rows = [match for line in lines if (match := _GROUP.match(line))]
    return {int(row["group"]): int(row["size"]) for row in rows}, sum(int(row["count"]) for row in rows)


def _dead(lines: list[str]) -> set[tuple[str, str]] | None:
    """Pids and addresses of the processes listed under DEAD; None when there is no such paragraph."""
    if "DEAD" not in lines:
        return None
    listed = itertools.takewhile(bool, lines[lines.index("DEAD") :])
    return {(match[1], match[2]) for line in listed if (match := _PROCESS.match(line))}


def _troubles(lines: list[str], skipped: Counter[Skipped]) -> dict[str, _Trouble]:
    """What the paragraphs say of each communicator, by its hash."""
    troubles: dict[str, _Trouble] = {}
    current = None
    for line in lines:
        if match := _TROUBLE.match(line):
            current = troubles.get(match[2])
            if current is None and len(troubles) < MAX_TROUBLES:
                current = troubles[match[2]] = _Trouble(int(match[1]))
            elif current is None:
                skipped["surplus"] += 1
        elif line and not line.startswith(" "):
            current = None
        elif current is not None:
            current.take(line)
    return troubles


def _communicator(name: str, trouble: _Trouble, size: int, dead: set[tuple[str, str]] | None) -> Communicator:
    named = tuple(_missing_rank(match, reason, dead or set()) for match, reason in trouble.ranks)
    told = dead is None or sum(bool(match.groupdict().get("pid")) for match, _ in trouble.ranks) == trouble.silent
    return Communicator(
        hash=f"0x{name.lstrip('0') or '0'}",
        size=size,
        responding=size - trouble.silent - trouble.left,
        missing=trouble.silent + trouble.left,
        unresponsive=None if trouble.bare else trouble.silent,
        dead=sum(rank.reason == "dead" for rank in named) if told else None,
        named=named,
    )


def _missing_rank(match: re.Match[str], reason: Reason, dead: set[tuple[str, str]]) -> MissingRank:
    place = match.groupdict()
    host = plain_address(place.get("host") or "") or ""
    gpu = place.get("nvml") or place.get("cuda") or ""
    if reason == "unresponsive" and (place.get("pid"), place.get("host")) in dead:
        reason = "dead"
    return MissingRank(int(place["rank"]), host, gpu if gpu and int(gpu) <= MAX_DEVICE else "", reason)
