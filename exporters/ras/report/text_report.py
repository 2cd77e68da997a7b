"""Reads the text report of NCCL 2.24 and later and of RCCL. Pure.

A report is a table of groups of like communicators, then paragraphs about communicators in trouble. Reports name only
these communicators, and ranks only if they are few. If exactly one communicator is the largest, its ranks are the
job's. A statement is a line about one rank, or a line with a count, followed by the counted ranks if they are few.
"""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from exporters.ras.report import model
from exporters.ras.report.launches import World

_LOCATION = (
    r"-- (?:GPU (?P<cuda>\d{1,4})(?: \(NVML (?P<nvml>\d{1,4})\))?"
    r" managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})|\[process information not found\])$"
)
_STATUS = r"(?P<status>[A-Z]{2,10})"
_ERROR = r"(?P<error>[A-Z][A-Za-z ]{2,40}?)"
_LAUNCHED = r"(?:launched up to operation (?P<launched>\d{1,18})|not launched any operations)"
_ONE = r"  Rank (?P<rank>-?\d{1,10})"
_MANY = r"  (?P<count>\d{1,9}) ranks"
_RANK = re.compile(rf"{_ONE} {_LOCATION}")
_BARE_RANK = re.compile(r"(?P<rank>-?\d{1,10})")
_BARE_RANKS = re.compile(r"  The missing ranks?: (-?\d{1,10}(?:,-?\d{1,10})*)$")
_SILENT = re.compile(r"  Missing communicator data from (?P<count>\d{1,9}) ranks?$")
_DIFFERENT = re.compile(r"  Communicator ranks have different (?P<collective>[A-Za-z]{2,20})(?: operation)? ")
_ERRORS = re.compile(r"  (?P<kind>Initialization|Asynchronous) errors? on \d{1,9} ranks?$")
_STATEMENTS: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = (
    ("silent", (_SILENT,)),
    (
        "status",
        (re.compile(f"{_MANY} have status {_STATUS}$"), re.compile(f"{_ONE} has status {_STATUS}(?: {_LOCATION})?$")),
    ),
    ("error", (re.compile(f"{_MANY} reported {_ERROR}$"), re.compile(f"{_ONE} reported {_ERROR} {_LOCATION}"))),
    ("launched", (re.compile(f"{_MANY} have {_LAUNCHED}$"), re.compile(f"{_ONE} has {_LAUNCHED} {_LOCATION}"))),
)
_ERROR_NAMES = {name.replace("_", " "): name for name in model.ERRORS.values()} | {
    "remote process error": "remote_error",
    "unexpected error": "unknown",
}
_DEPARTED = ("NOCOMM", "UNKNOWN")
"""Statuses of a rank that answers and is not in the communicator; NCCL 2.24 and 2.25 write UNKNOWN."""
_ANY = "any"  # Instead of a collective: 2.24 and 2.25 count all collectives together


class _Statement(NamedTuple):
    """``about``: the collective, or the kind of error. ``counted``: number of ranks; ``ranks``: the listed ranks."""

    kind: str
    value: str
    about: str
    counted: int
    ranks: list[re.Match[str]]


class TroubleText:
    """The paragraphs about one communicator of ``group``."""

    def __init__(self, group: int) -> None:
        self.group = group
        self._statements: list[_Statement] = []
        self._listed: list[re.Match[str]] = []
        self._bare: list[re.Match[str]] | None = None
        self._about = ""

    def take(self, line: str) -> None:
        """Add a line; an unknown line ends the list of ranks before it."""
        if match := _DIFFERENT.match(line):
            self._about = match["collective"] if match["collective"] in model.COLLECTIVES else _ANY
        elif match := _ERRORS.match(line):
            self._about = "init_error" if match["kind"] == "Initialization" else "async_error"
        elif match := _BARE_RANKS.match(line):
            self._bare = list(_BARE_RANK.finditer(match[1]))
        elif match := _RANK.match(line):
            self._listed.append(match)
        else:
            self._state(line)

    def _state(self, line: str) -> None:
        for kind, patterns in _STATEMENTS:
            for match in filter(None, (pattern.match(line) for pattern in patterns)):
                fields = match.groupdict()
                value = fields.get("status") or fields.get("error") or fields.get("launched") or "0"
                alone = [match] if "rank" in fields else []
                self._statements.append(_Statement(kind, value, self._about, int(fields.get("count") or 1), alone))
                self._listed = alone
                return
        self._listed = []

    def communicator(self, name: str, size: int, dead: set[tuple[str, str]] | None) -> model.Communicator:
        """Return communicator ``name`` (16 digits). ``dead``: (pid, address) of dead processes, None when unknown."""
        silent = [statement for statement in self._statements if statement.kind == "silent"]
        departed = [one for one in self._statements if one.kind == "status" and one.value in _DEPARTED]
        missing = sum(statement.counted for statement in (*silent, *departed))
        named = [
            *(_missing(rank, "unknown", set()) for rank in self._bare or ()),
            *(_missing(rank, "unresponsive", dead or set()) for statement in silent for rank in statement.ranks),
            *(_missing(rank, "no_communicator", set()) for statement in departed for rank in statement.ranks),
        ]
        listed = sum(bool(rank["pid"]) for statement in silent for rank in statement.ranks)
        is_complete = dead is None or listed == sum(statement.counted for statement in silent)
        return model.Communicator(
            hash=f"0x{name.lstrip('0') or '0'}",
            size=size,
            responding=size - missing,
            missing=missing,
            unresponsive=sum(statement.counted for statement in silent) if self._bare is None else None,
            dead=sum(rank.reason == "dead" for rank in named) if is_complete else None,
            named=tuple(named),
            troubled=self._troubled(),
            launches=self._launches(size - missing),
        )

    def _troubled(self) -> tuple[model.TroubledRank, ...]:
        troubled = []
        for statement in self._statements:
            trouble: model.Trouble = "init_error" if statement.about == "init_error" else "async_error"
            error = _ERROR_NAMES.get(statement.value.lower(), "") if statement.kind == "error" else ""
            if (statement.kind, statement.value) == ("status", "ABORT"):
                trouble = "aborted"
            elif not error:
                continue
            troubled += [model.TroubledRank(*_at(rank), trouble=trouble, error=error) for rank in statement.ranks]
        return tuple(troubled[: model.MAX_TROUBLED])

    def _launches(self, ranks: int) -> model.Launches | None:
        """Return the launch counts that differ; a text report lists no others. ``ranks``: how many ranks gave data."""
        launched = [statement for statement in self._statements if statement.kind == "launched"]
        if not launched:
            return None
        by_collective: dict[str, list[_Statement]] = defaultdict(list)
        for launch in launched:
            by_collective[launch.about].append(launch)
        extremes = {}
        lags: dict[int, dict[str, int]] = defaultdict(dict)
        locations = {}
        for collective, statements in by_collective.items():
            counts = [int(statement.value) for statement in statements]
            most = max(counts)
            extremes[collective] = (min(counts), most)
            late = [statement for statement in statements if int(statement.value) < most]
            # as in launches.py: the majority is not behind
            if 2 * sum(statement.counted for statement in late) > ranks:
                continue
            for statement in late:
                for rank in statement.ranks:
                    number, locations[int(rank["rank"])] = _at(rank)
                    lags[number][collective] = most - int(statement.value)
        furthest = sorted(lags, key=lambda number: (-sum(lags[number].values()), number))[: model.MAX_BEHIND]
        behind = tuple(model.BehindRank(number, locations[number], lags=lags[number]) for number in furthest)
        return model.Launches(extremes, model.marks_of([(0, [_digest(launched)])]), differ=True, behind=behind)


def _digest(statements: list[_Statement]) -> int:
    """Return one mark for all ranks: a text does not list the ranks that have launched as much as most ranks."""
    text = repr([(one.about, one.value, one.counted, [rank["rank"] for rank in one.ranks]) for one in statements])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def _missing(rank: re.Match[str], reason: model.MissingReason, dead: set[tuple[str, str]]) -> model.MissingRank:
    number, location = _at(rank)
    if reason == "unresponsive" and (str(location.pid), rank.groupdict().get("host")) in dead:
        reason = "dead"
    return model.MissingRank(number, location, reason=reason)


def _at(rank: re.Match[str]) -> tuple[int, model.RankLocation]:
    fields = rank.groupdict()
    gpu = int(fields.get("nvml") or fields.get("cuda") or -1)
    host = model.plain_address(fields.get("host") or "") or ""
    return int(fields["rank"]), model.RankLocation(
        host, int(fields.get("pid") or -1), gpu if gpu <= model.MAX_DEVICE else -1
    )


MAX_TROUBLES = 4 * model.MAX_COMMUNICATORS  # Above the limit of communicators, because old versions also list garbage

_BANNER = re.compile(r"[NR]CCL version (\d{1,3}(?:\.\d{1,3}){1,2}[0-9A-Za-z.+_-]{0,32}) compiled with ")
_RULE = re.compile(r"={6,20}$")
_GROUP = re.compile(
    r" *(?P<group>\d{1,7}) +(?P<count>\d{1,7}) +\d{1,7} +\d{1,7}(?:-\d{1,7})? +(?P<size>\d{1,9}) +-?\d{1,9}"
    r" +[A-Z]{2,10} +[A-Z,]{2,40}$"
)
_TROUBLE = re.compile(r"#(\d{1,7})-\d{1,7} \(([0-9a-f]{16})\) (INCOMPLETE|ERROR|MISMATCH)$")
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,64}) managing GPUs? ")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeouts? while gathering communicator data$")


def read_text(body: bytes) -> model.Report:
    """Read a report; ReportError when ``body`` is not a report, or was cut before its last heading."""
    lines = body.decode("ascii", "replace").splitlines()
    banner = _BANNER.match(lines[0]) if lines else None
    if banner is None:
        raise model.ReportError("no report: it does not begin with a version")
    sections = _sections(lines)
    if "Warnings" not in sections:
        raise model.ReportError("a report without its last heading", cut=True)
    skipped: Counter[model.Skipped] = Counter()
    sizes, counts = _groups(sections.get("Communicators", []))
    dead = _dead(sections.get("Errors", []))
    troubles = _troubles([*sections.get("Errors", []), *sections["Warnings"]], skipped)
    communicators = (
        trouble.communicator(name, sizes.get(trouble.group, -1), dead) for name, trouble in troubles.items()
    )
    accepted = model.accept(communicators, skipped)
    _name_ranks(accepted, sizes, counts)
    skipped["unnamed"] += max(sum(counts.values()) - len(troubles), 0)
    timeouts = sum(int(match[1]) for line in sections["Warnings"] if (match := _TIMEOUTS.match(line)))
    return model.Report(banner[1], accepted, frozenset(), timeouts, dict(+skipped))


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines below each underlined heading; the communicators' heading ends with a duration."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for above, line in zip(["", *lines], lines, strict=False):
        if _RULE.match(line) and above:
            current = sections.setdefault(above.partition(".")[0], [])
        else:
            current.append(line)
    return sections


def _groups(lines: list[str]) -> tuple[dict[int, int], dict[int, int]]:
    """Return by group the ranks per communicator, and the number of communicators."""
    rows = [match for line in lines if (match := _GROUP.match(line))]
    return {int(row["group"]): int(row["size"]) for row in rows}, {int(row["group"]): int(row["count"]) for row in rows}


def _name_ranks(
    communicators: Collection[model.Communicator], sizes: Mapping[int, int], counts: Mapping[int, int]
) -> None:
    """Set each rank's rank in the largest communicator, if only one has this size. A text names few of its members."""
    largest = max(sizes.values(), default=0)
    if sum(counts[group] for group, size in sizes.items() if size == largest) != 1:
        return
    world = World()
    ranks = [rank for communicator in communicators if communicator.size == largest for rank in communicator.ranks()]
    world.add(largest, [(rank.location, rank.comm_rank) for rank in ranks])
    world.name(communicators)
    for rank in ranks:
        rank.rank = rank.comm_rank


def _dead(lines: list[str]) -> set[tuple[str, str]] | None:
    """Return (pid, address) of the processes listed under DEAD; None without such a paragraph."""
    if "DEAD" not in lines:
        return None
    listed = itertools.takewhile(bool, lines[lines.index("DEAD") :])
    return {(match[1], match[2]) for line in listed if (match := _PROCESS.match(line))}


def _troubles(lines: list[str], skipped: Counter[model.Skipped]) -> dict[str, TroubleText]:
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
