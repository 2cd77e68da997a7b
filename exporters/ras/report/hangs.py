"""Which ranks block a job, from its successive reports. Pure.

A running job changes its launch counts between two reports. A communicator with unchanged counts is stalled if the
counts of its ranks differ or some ranks do not answer. A communicator that a few ranks have left is stalled, too, if
nothing is launched for minutes. Suspects are the ranks that have launched less, unless they wait for another rank in
another stalled communicator. RAS declares a rank dead after a stop of a minute, and never revokes that, even if the
rank continues. So a rank without an answer is no suspect if launches went on without it, unless there is no other
suspect. Equal and unchanged counts may be a hang on the GPUs or a pause: the time of their first report is exported,
and no rank is blamed.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Annotated, Literal, NamedTuple

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds
from agent.sdk.ranks import ProcessKey
from exporters.ras.report import model

STALLED_REPORTS = 2  # Consecutive reports with the same counts
LEFT_SECONDS = 300.0
"""After this long without a launch a communicator counts as waiting for the ranks that left it. In a job that runs or
ends, the ranks leave a communicator within seconds of each other."""
SILENT_SECONDS = 30.0
"""If launches go on this long after the first report without a rank's answer, no rank waits for that rank: no host is
so far ahead of its GPU."""
STOPPED_TOGETHER_SECONDS = 60.0  # The communicators of a job that hangs stop within this time; the rules use it, too
MAX_SUSPECTS = 32  # Limit for each communicator
WATCH_BYTES = 512
SILENT_BYTES = 16  # Size of a watch: WATCH_BYTES, its marks, and this for each rank that does not answer
MAX_SAVED_BYTES = 1024 * 1024  # Limit in the checkpoint; jobs take turns, so no job displaces another
MAX_ABSENT_BYTES = 1024 * 1024
"""Limit for watches of communicators that the last report lacks: enough for the 2,000 latest small watches."""

SuspectReason = Literal["behind", "missing", "left"]


class Watch(msgspec.Struct, frozen=True, rename={"report_seconds": "seen_seconds", "silent_since": "unheard"}):
    """A communicator's launch counts: since when (epoch seconds) and in how many reports they are unchanged.

    ``marks``: the last mark (checksum of launches) of each rank that answered in any of these reports.
    ``report_seconds``: time of the last report. ``silent_since``: for each rank that does not answer, the time of the
    first report without its answer. ``launched_after_seconds``: the last launch was later than this. ``secondary``: the
    communicator's checksum.
    """

    marks: Annotated[model.Marks, msgspec.Meta(max_length=MAX_SAVED_BYTES)]
    since_seconds: SavedSeconds
    reports: SavedCount = 1
    report_seconds: SavedSeconds = 0.0
    silent_since: Annotated[dict[int, SavedSeconds], msgspec.Meta(max_length=model.MAX_NAMED)] = {}
    launched_after_seconds: SavedSeconds = 0.0
    secondary: Annotated[str, msgspec.Meta(max_length=8)] = ""

    @property
    def frozen(self) -> bool:
        """Return True when nothing was launched between the last two reports."""
        return self.reports >= STALLED_REPORTS

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the watch takes."""
        return WATCH_BYTES + len(self.marks) + SILENT_BYTES * len(self.silent_since)

    @property
    def still_seconds(self) -> float:
        """Return the seconds without a launch, up to the last report."""
        return self.report_seconds - self.since_seconds

    def goes_on_without(self, comm_rank: int) -> bool:
        """Return True when launches went on SILENT_SECONDS after the first report without a rank's answer."""
        since = self.silent_since.get(comm_rank)
        return since is not None and self.launched_after_seconds >= since + SILENT_SECONDS


class Suspect(msgspec.Struct, frozen=True):
    """A rank that others wait for: it has launched less, does not answer, or has left the communicator."""

    rank: model.NamedRank
    reason: SuspectReason


def watch(
    before: Mapping[str, Watch], communicators: Iterable[model.Communicator], now_seconds: float
) -> dict[str, Watch]:
    """Return the watches after a report; a communicator is watched from its first launch on.

    A communicator stays watched if the report lacks the communicator or its launch counts. If the
    clock was set back, the standstill begins at this report at the latest.
    """
    after = {}
    for communicator in communicators:
        known = before.get(communicator.hash)
        if communicator.launches is None:
            if known is not None:
                after[communicator.hash] = known
        else:
            watched = _watched(known, communicator, communicator.launches.marks, now_seconds)
            after[communicator.hash] = msgspec.structs.replace(watched, secondary=communicator.secondary)
    absent = {name: known for name, known in before.items() if name not in after}
    return after | within(absent, MAX_ABSENT_BYTES)


def _watched(known: Watch | None, communicator: model.Communicator, marks: model.Marks, now_seconds: float) -> Watch:
    before = known.silent_since if known is not None else {}
    silent_since = {rank.comm_rank: before.get(rank.comm_rank, now_seconds) for rank in _silent(communicator)}
    if known is None:
        return Watch(marks, now_seconds, 1, now_seconds, silent_since)
    if model.differ(known.marks, marks):
        return Watch(marks, now_seconds, 1, now_seconds, silent_since, min(known.report_seconds, now_seconds))
    together = model.taken_together(known.marks, marks)
    since_seconds = min(known.since_seconds, now_seconds)
    return Watch(together, since_seconds, known.reports + 1, now_seconds, silent_since, known.launched_after_seconds)


def within(watches: Mapping[str, Watch], max_bytes: int) -> dict[str, Watch]:
    """Return the watches with the latest reports, up to ``max_bytes`` in all."""
    latest, room = {}, max_bytes
    for name, known in sorted(watches.items(), key=lambda item: -item[1].report_seconds):
        room -= known.size_bytes
        if room < 0:
            break
        latest[name] = known
    return latest


def stalled(communicator: model.Communicator, watches: Mapping[str, Watch]) -> bool:
    """Return True if nothing was launched between the last two reports, although launch counts differ, ranks are
    silent, or ranks have left the communicator."""
    if communicator.launches is None or not watches[communicator.hash].frozen:
        return False
    silent = communicator.unresponsive or communicator.dead
    return communicator.launches.differ or bool(silent or _left(communicator, watches[communicator.hash]))


def suspects(
    communicators: Collection[model.Communicator], watches: Mapping[str, Watch]
) -> dict[str, tuple[Suspect, ...]]:
    """Return the ranks that block stalled communicators, by communicator hash; empty when they are unknown."""
    still = [communicator for communicator in communicators if stalled(communicator, watches)]
    silent = {communicator.hash: ranks for communicator in still if (ranks := _silent(communicator))}
    needed = {
        name: missed
        for name, ranks in silent.items()
        if (missed := [rank for rank in ranks if not watches[name].goes_on_without(rank.comm_rank)])
    }
    frozen = {name for name, known in watches.items() if known.frozen}
    named: dict[str, tuple[Suspect, ...]] = {}
    for communicator in still:
        if communicator.hash in needed:
            named[communicator.hash] = _as_suspects(needed[communicator.hash], "missing")
        elif departed := _left(communicator, watches[communicator.hash]):
            named[communicator.hash] = _as_suspects(departed, "left")
        elif communicator.launches is not None and (
            behind := [
                rank for rank in communicator.launches.behind if not _waits(rank, frozen, silent.keys(), needed.keys())
            ]
        ):
            named[communicator.hash] = _as_suspects(behind, "behind")
    return named or {name: _as_suspects(ranks, "missing") for name, ranks in silent.items()}


def _waits(rank: model.BehindRank, frozen: Set[str], silent: Set[str], needed: Set[str]) -> bool:
    """Return True when the rank itself waits in another communicator: it is ahead there, or ranks there are silent.

    A communicator in ``overtaken_in`` counts only if its other ranks still need its silent ranks.
    """
    if not frozen.isdisjoint(rank.waits_in) or not needed.isdisjoint(rank.beside_silent):
        return True
    return not silent.isdisjoint(set(rank.beside_silent) - set(rank.overtaken_in))


def _as_suspects(ranks: Sequence[model.NamedRank], reason: SuspectReason) -> tuple[Suspect, ...]:
    return tuple(Suspect(rank, reason) for rank in ranks[:MAX_SUSPECTS])


def _silent(communicator: model.Communicator) -> list[model.NamedRank]:
    return _missing(communicator, "unresponsive", "dead")


def _left(communicator: model.Communicator, known: Watch) -> list[model.NamedRank]:
    """Return the ranks that left a communicator, once it had no launch for LEFT_SECONDS.

    If half of its ranks or more have left, return none: the job ends, and the other ranks will leave, too.
    """
    departed = _missing(communicator, "no_communicator")
    count = communicator.missing - (communicator.unresponsive or 0)  # ``departed`` can lack some: names are limited
    return departed if known.still_seconds >= LEFT_SECONDS and 2 * count < communicator.size else []


def _missing(communicator: model.Communicator, *reasons: model.MissingReason) -> list[model.NamedRank]:
    return [rank for rank in communicator.named if rank.reason in reasons]


ABORT_SHOWN_SECONDS = 60.0
"""How long an abort is shown: its flag is set for a second or two, and Prometheus scrapes every fifteen."""
MAX_ABORTED = 1024  # Per job; the aborts seen first are shown


class AbortedRank(NamedTuple):
    """A rank that aborted a communicator, and the communicator's hash."""

    hash: str
    comm_rank: int


class Abort(NamedTuple):
    """``seconds``: epoch time of the abort's last report; ``rank``: rank in the largest communicator, if known."""

    seconds: float
    rank: int | None


def aborted(before: Mapping[AbortedRank, Abort], report: model.Report, now_seconds: float) -> dict[AbortedRank, Abort]:
    """Return the ranks that aborted a communicator in this report, or in a report less than ABORT_SHOWN_SECONDS ago."""
    aborts = {who: known for who, known in before.items() if 0.0 <= now_seconds - known.seconds < ABORT_SHOWN_SECONDS}
    for communicator in report.communicators:
        for troubled_rank in communicator.troubled:
            if troubled_rank.trouble == "aborted":
                aborts[AbortedRank(communicator.hash, troubled_rank.comm_rank)] = Abort(now_seconds, troubled_rank.rank)
    return dict(itertools.islice(aborts.items(), MAX_ABORTED))


class JobReport(msgspec.Struct, frozen=True):
    """A job's report. ``owner``: a process of the job.

    ``world_size``: number of the job's ranks, None when unknown; ``queried_seconds``: time of the query (epoch);
    ``aborted``: ranks that recently aborted a communicator; ``watches`` and ``suspects``: by communicator hash.
    """

    owner: ProcessKey
    report: model.Report
    world_size: int | None
    watches: dict[str, Watch]
    queried_seconds: float = 0.0
    aborted: dict[AbortedRank, Abort] = {}
    suspects: dict[str, tuple[Suspect, ...]] = {}

    @property
    def last_launch_seconds(self) -> float:
        """Return the time of the job's last launch in any communicator; -inf without one."""
        launching = (comm.hash for comm in self.report.communicators if comm.launches is not None)
        return max((self.watches[name].since_seconds for name in launching), default=-math.inf)

    def blamed(self) -> dict[str, tuple[Suspect, ...]]:
        """Return the suspects in communicators that stopped with the job: other communicators may be long unused."""
        since = self.last_launch_seconds - STOPPED_TOGETHER_SECONDS
        return {name: ranks for name, ranks in self.suspects.items() if self.watches[name].since_seconds >= since}

    def stalled_seconds(self) -> float | None:
        """Return the seconds from the job's last launch to the report; None without suspects.

        The wait is not counted up to the present: the job may have continued.
        """
        return self.queried_seconds - self.last_launch_seconds if self.suspects else None

    def rank_label(self, rank: int | None) -> str:
        """Return the global rank for a rank of the largest communicator; "" if that is only a part of the job."""
        whole = self.world_size in (None, self.report.ranks())
        return str(rank) if rank is not None and whole else ""
