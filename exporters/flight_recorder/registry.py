"""Keeps the dumps of this node's ranks and shows them as metrics and in bundles; counts files by result. Pure.

A rank blocks other ranks if it has not begun a collective in which they wait, or has not finished a collective that
they have finished. The evidence blames a rank only if it waits for no other rank: a rank that waits in another
collective may be blocked by a rank on another node.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from agent.sdk.evidence import Offered, summary
from agent.sdk.metrics import Admission, Family, Metric
from agent.sdk.ranks import ProcessKey, RankLabel, RankView
from exporters.flight_recorder.dump import DumpSummary, GroupProgress
from exporters.flight_recorder.reading import SETTLED, DumpAnswer, FileVersion

KEEP_SECONDS = 3600.0  # The exporter shows a dump for this long after the read
GOES_ON_SECONDS = 60.0
"""If a rank completes an operation this long after its dump, the job continues, and the dump is hidden."""
UNANSWERED = "unanswered"  # Result for a file system that does not answer


class ShownDump(msgspec.Struct, frozen=True):
    """A rank's dump. ``written``: time of the write or of the read, whichever is earlier; seconds since the epoch."""

    label: RankLabel
    written: float
    summary: DumpSummary

    @property
    def series(self) -> int:
        """Return the number of series of this dump."""
        groups = self.summary.groups
        return 1 + sum((group.enqueued is not None) + (group.waits is not None) for group in groups)


class _Entry(msgspec.Struct):
    """One rank's file. ``process``: None for recorded data, whose processes are unknown."""

    process: ProcessKey | None
    identity: FileVersion
    result: str
    read_at: float
    shown: ShownDump | None = None


class DumpRegistry:
    """The dumps by rank; ``admit`` limits their series."""

    def __init__(self, admit: Admission) -> None:
        self._entries: dict[RankLabel, _Entry] = {}
        self._admit = admit
        self.counts: Counter[str] = Counter()

    def known(self, label: RankLabel, process: ProcessKey | None) -> FileVersion | None:
        """Return the file that was read before for this process of the rank, or None."""
        entry = self._entries.get(label)
        return None if entry is None or entry.process != process else entry.identity

    def take(
        self, label: RankLabel, process: ProcessKey | None, uid: int, answer: DumpAnswer | None, now: float
    ) -> None:
        """Store the helper's answer about a rank's file. ``uid``: the rank's user; ``now``: seconds since the epoch."""
        if answer is None:
            self.counts[UNANSWERED] += 1
            return
        if answer.result not in SETTLED or answer.identity is None:
            return
        entry = self._entries.get(label)
        if entry is not None and entry.result == answer.result and self.known(label, process) == answer.identity:
            return
        if entry is not None and (entry.process != process or answer.result != "incomplete"):
            self._hide(entry)  # while a new dump is incomplete, the old one stays
        shown = entry.shown if entry is not None else None
        result: str = answer.result
        if answer.summary is not None:
            shown = ShownDump(label, min(now, answer.identity[3] / 1e9), answer.summary)
            if not self._admit.admit(_key(label), shown.series, group=(uid, label.job_id)):
                shown, result = None, "no_room"
        self.counts[result] += 1
        self._entries[label] = _Entry(process, answer.identity, answer.result, now, shown)

    def tidy(self, views: Mapping[RankLabel, RankView], now: float) -> None:
        """Hide dumps that are old, of restarted ranks or jobs, or of ranks that made progress. Forget ended ranks."""
        started = newest_starts(views.values())
        for label, entry in list(self._entries.items()):
            view = views.get(label)
            facts = None if view is None else view.process.facts
            progress = None if view is None else view.process.progress_seconds
            is_other = facts is not None and facts.key != entry.process
            written = math.inf if entry.shown is None else entry.shown.written
            went_on = progress is not None and progress > written + GOES_ON_SECONDS
            is_restarted = written < started.get(label.job_id, 0.0)
            if now - entry.read_at > KEEP_SECONDS or is_other or went_on or is_restarted:
                self._hide(entry)
            if entry.shown is None and (view is None or is_other):
                del self._entries[label]

    def shown(self) -> tuple[ShownDump, ...]:
        """Return all dumps to show, sorted by job and rank."""
        dumps = [entry.shown for entry in self._entries.values() if entry.shown is not None]
        return tuple(sorted(dumps, key=lambda dump: (dump.label.job_id, len(dump.label.rank), dump.label.rank)))

    def _hide(self, entry: _Entry) -> None:
        if entry.shown is not None:
            self._admit.release(_key(entry.shown.label))
            entry.shown = None


def _key(label: RankLabel) -> tuple[str, RankLabel]:
    return "flight_recorder", label


def newest_starts(views: Iterable[RankView]) -> dict[str, float]:
    """Return for each job the latest start of its processes on this node, in seconds since the epoch."""
    starts: dict[str, float] = {}
    for view in views:
        job_id = view.label.job_id
        starts[job_id] = max(starts.get(job_id, 0.0), view.process.facts.start_seconds)
    return starts


_PER_GROUP = "after a timeout 1 per rank and process group of several ranks, at most 32 per rank; for an hour"

# fmt: off
ENQUEUED = Family(
    "rankwatch_flight_recorder_enqueued_sequence", "gauge",
    "Number of the last collective in the process group that the rank had begun when it wrote its dump. A rank blocks "
    "other ranks if its number is lower than the number of the collective in which they wait.",
    ("job_id", "rank", "process_group"), _PER_GROUP, "max")
UNFINISHED = Family(
    "rankwatch_flight_recorder_unfinished_sequence", "gauge",
    "Number of the first collective in the process group that the rank had begun but not completed. dtype, elements: "
    "the collective's input, if it must be the same on all ranks. state: started (on the GPU) or scheduled (not "
    "started, or PyTorch records no start times).",
    ("job_id", "rank", "process_group", "description", "operation", "dtype", "elements", "state"),
    "after a timeout 1 per rank and process group that it waits in; for an hour", "max")
WRITTEN = Family(
    "rankwatch_flight_recorder_dump_timestamp_seconds", "gauge",
    "Time when the rank wrote the shown dump, or when the exporter read it if that is earlier.",
    ("job_id", "rank"), "after a timeout 1 per rank; for an hour", "max")
DUMPS = Family(
    "rankwatch_flight_recorder_dumps_total", "counter",
    "Flight recorder files found, by result: read, incomplete, malformed, too_large, "
    "other_rank, other_job (also a file of two jobs of one user), other_user, earlier_process, no_room, unanswered.",
    ("result",), "1 per result seen")
# fmt: on
FAMILIES = (ENQUEUED, UNFINISHED, WRITTEN, DUMPS)


class FlightSnapshot(msgspec.Struct, frozen=True):
    """The data of one render."""

    dumps: tuple[ShownDump, ...] = ()
    counts: Mapping[str, int] = {}


def render(snapshot: FlightSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for dump in snapshot.dumps:
        rows[WRITTEN].add(dump.label, dump.written)
        for group in dump.summary.groups:
            if group.enqueued is not None:
                rows[ENQUEUED].add((*dump.label, group.name), group.enqueued)
            if (call := group.waits) is not None:
                which = (call.operation, call.dtype, call.elements, call.state)
                rows[UNFINISHED].add((*dump.label, group.name, group.description, *which), call.sequence)
    for result, count in snapshot.counts.items():
        rows[DUMPS].add((result,), count)
    return [row.metric for row in rows.values()]


FILE = "dumps.json"
MAX_WORDS = 256
APART_SECONDS = 900.0
"""Ranks write the dumps of one hang within this time. A dump that is older than the newest dump by more than this
belongs to an earlier hang."""
OF_ALL = frozenset(
    ["all_reduce", "all_reduce_barrier", "allreduce_coalesced", "barrier", "all_to_all", "all_gather",
     "_all_gather_base", "all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
     "reduce_scatter_tensor_coalesced"]
)  # fmt: skip
"""Operations that complete on all ranks or on no rank."""
_VARIANT = re.compile(r"^_|_base$")


def part(dumps: Iterable[ShownDump], job_id: str) -> Offered:
    """Return the part of a job's bundle; empty without a dump of its ranks on this node."""
    of_job = [dump for dump in dumps if dump.label.job_id == job_id]
    newest = max((dump.written for dump in of_job), default=0.0)
    of_hang = [dump for dump in of_job if dump.written >= newest - APART_SECONDS]
    if not of_hang:
        return Offered({}, why="no dump of this job")
    hang = _Hang(of_hang)
    words = [word for dump in of_hang for word in hang.words(dump)]
    listed = [{"rank": dump.label.rank, "written": dump.written, "groups": dump.summary.groups} for dump in of_hang]
    return Offered({FILE: msgspec.json.encode(listed) + b"\n"}, words[:MAX_WORDS])


class _Hang:
    """For each process group: ``_awaited``, the latest collective that a rank of the dumps waits in; ``_least``, the
    lowest number among the ranks' last enqueued collectives."""

    def __init__(self, dumps: Collection[ShownDump]) -> None:
        self._awaited: dict[str, GroupProgress] = {}
        self._least: dict[str, int] = {}
        for group in (group for dump in dumps for group in dump.summary.groups):
            if _waits_in(group) > self._farthest(group.name):
                self._awaited[group.name] = group
            if group.enqueued is not None:
                self._least[group.name] = min(group.enqueued, self._least.get(group.name, group.enqueued))

    def words(self, dump: ShownDump) -> Iterable[summary.Word]:
        """Yield statements: which collective the rank of a dump had not begun, had not finished or waited in."""
        groups = dump.summary.groups
        waits = next((group for group in groups if group.waits is not None), None)
        behind = next((group for group in groups if self._has_not_begun(group)), None)
        stuck = next((group for group in groups if self._has_not_finished(group)), None)
        if behind is not None:
            says = f"had not begun {_operation(self._awaited[behind.name])}, unlike other ranks of the node"
            yield _word(dump, says, blames=waits is None)
        if stuck is not None and not any(map(self._waits_for_a_rank_here, groups)):
            yield _word(dump, f"had not finished {_operation(stuck)}, unlike other ranks of the node", blames=True)
        elif waits is not None:
            yield _word(dump, f"waited in {_operation(waits)}", blames=False)

    def _farthest(self, name: str) -> int:
        known = self._awaited.get(name)
        return -1 if known is None else _waits_in(known)

    def _has_not_begun(self, group: GroupProgress) -> bool:
        return group.enqueued is not None and group.enqueued < self._farthest(group.name)

    def _has_not_finished(self, group: GroupProgress) -> bool:
        is_of_all = group.waits is not None and group.waits.operation in OF_ALL
        return is_of_all and _waits_in(group) < self._farthest(group.name)

    def _waits_for_a_rank_here(self, group: GroupProgress) -> bool:
        return _waits_in(group) > self._least.get(group.name, _waits_in(group))


def _waits_in(group: GroupProgress) -> int:
    return -1 if group.waits is None else group.waits.sequence


def _operation(group: GroupProgress) -> str:
    operation = "" if group.waits is None else _VARIANT.sub("", group.waits.operation)
    return f"{operation} no. {_waits_in(group)} of group {group.description or group.name}"


def _word(dump: ShownDump, says: str, *, blames: bool) -> summary.Word:
    return summary.Word(dump.label.rank, "flight_recorder", says[: summary.MAX_TEXT], blames)
