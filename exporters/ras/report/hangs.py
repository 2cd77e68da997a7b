"""Which ranks hold a job up, from its successive reports. Pure.

A communicator whose launch counts stay as they are while its ranks differ, or while some do not answer, is stalled: a
job that runs changes them between two reports. So is one that a few ranks have left, when nothing is launched for
minutes. The ranks that have launched less are suspects, unless they wait themselves, in another stalled communicator,
for another rank. A rank that was stopped for a minute is dead to RAS for good, though it goes on: one that does not
answer is no suspect where launches went on without its answers, unless no other rank is. Counts that are equal and
stay so may be a hang on the GPUs or a pause: its start is exported, and no rank is blamed.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Annotated, Literal, NamedTuple

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds
from agent.sdk.ranks import ProcessKey
from exporters.ras.report import model

STALLED_REPORTS = 2  # Reports in a row with the same counts
LEFT_SECONDS = 300.0
"""After this long without a launch a communicator waits for the ranks that left it. In a job that runs,
and at its end, the ranks leave a communicator within seconds of each other."""
UNHEARD_SECONDS = 30.0
"""Launches this long after a rank's last answer show that the others do not wait for it: a host launches less far ahead
of its GPU."""
MAX_SUSPECTS = 32  # Named in one communicator
WATCH_BYTES = 512
UNHEARD_BYTES = 16  # What a watch takes beside its marks, and of each rank that does not answer
MAX_SAVED_BYTES = 1024 * 1024  # in the checkpoint, of all jobs' watches, in turns: none keeps out another's
MAX_ABSENT_BYTES = 1024 * 1024
"""Of the watches of communicators that the last report does not hold: 2,000 small ones. The last seen are kept."""

SuspectReason = Literal["behind", "missing", "left"]


class Watch(msgspec.Struct, frozen=True):
    """A communicator's launch counts: since when (epoch seconds) and in how many reports they are what they are.

    ``marks`` are the last of each rank that answered in any of these reports, ``seen_seconds`` is the time of the last.
    ``unheard``: the ranks (in the communicator) that do not answer, and the time of the first report without their
    answer; something was launched later than ``launched_after_seconds``.
    """

    marks: Annotated[model.Marks, msgspec.Meta(max_length=MAX_SAVED_BYTES)]
    since_seconds: SavedSeconds
    reports: SavedCount = 1
    seen_seconds: SavedSeconds = 0.0
    unheard: Annotated[dict[int, SavedSeconds], msgspec.Meta(max_length=model.MAX_NAMED)] = {}
    launched_after_seconds: SavedSeconds = 0.0

    @property
    def frozen(self) -> bool:
        """Return True when nothing was launched between the last two reports."""
        return self.reports >= STALLED_REPORTS

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return WATCH_BYTES + len(self.marks) + UNHEARD_BYTES * len(self.unheard)

    @property
    def still_seconds(self) -> float:
        """For how long nothing had been launched when it was last seen."""
        return self.seen_seconds - self.since_seconds

    def goes_on_without(self, comm_rank: int) -> bool:
        """Return True when launches went on long after a rank was first unheard."""
        since = self.unheard.get(comm_rank)
        return since is not None and self.launched_after_seconds >= since + UNHEARD_SECONDS


class Suspect(msgspec.Struct, frozen=True):
    """A rank that others wait for: it has launched less, does not answer, or has left the communicator."""

    rank: model.NamedRank
    reason: SuspectReason


def watch(
    before: Mapping[str, Watch], communicators: Iterable[model.Communicator], now_seconds: float
) -> dict[str, Watch]:
    """Compare a report with what was known; communicators that have launched nothing yet are not watched.

    One that the report lacks, or without a rank that answers, is watched on: it stands still all the same. If
    the clock was set back it stands still since this report at the latest.
    """
    after = {}
    for communicator in communicators:
        known = before.get(communicator.hash)
        if communicator.launches is None:
            if known is not None:
                after[communicator.hash] = known
        else:
            after[communicator.hash] = _watched(known, communicator, communicator.launches.marks, now_seconds)
    absent = {name: known for name, known in before.items() if name not in after}
    return after | within(absent, MAX_ABSENT_BYTES)


def _watched(known: Watch | None, communicator: model.Communicator, marks: model.Marks, now_seconds: float) -> Watch:
    before = known.unheard if known is not None else {}
    unheard = {rank.comm_rank: before.get(rank.comm_rank, now_seconds) for rank in _silent(communicator)}
    if known is None:
        return Watch(marks, now_seconds, 1, now_seconds, unheard)
    if model.differ(known.marks, marks):
        return Watch(marks, now_seconds, 1, now_seconds, unheard, known.seen_seconds)
    together = model.taken_together(known.marks, marks)
    since_seconds = min(known.since_seconds, now_seconds)
    return Watch(together, since_seconds, known.reports + 1, now_seconds, unheard, known.launched_after_seconds)


def within(watches: Mapping[str, Watch], max_bytes: int) -> dict[str, Watch]:
    """Return the watches that were seen last, up to ``max_bytes`` of them."""
    kept, room = {}, max_bytes
    for name, known in sorted(watches.items(), key=lambda item: -item[1].seen_seconds):
        room -= known.size_bytes
        if room < 0:
            break
        kept[name] = known
    return kept


def stalled(communicator: model.Communicator, watches: Mapping[str, Watch]) -> bool:
    """True when nothing was launched since the report before, though some ranks are to launch more or do not answer."""
    if communicator.launches is None or not watches[communicator.hash].frozen:
        return False
    return (
        communicator.launches.differ
        or bool(_silent(communicator))
        or bool(_left(communicator, watches[communicator.hash]))
    )


def suspects(
    communicators: Collection[model.Communicator], watches: Mapping[str, Watch]
) -> dict[str, tuple[Suspect, ...]]:
    """The ranks that block stalled communicators, by the communicator's hash; none when that cannot be determined."""
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
    """True when it waits itself: ahead of others, or beside ranks that do not answer, unless others go on there."""
    if not frozen.isdisjoint(rank.waits_in) or not needed.isdisjoint(rank.beside_silent):
        return True
    return not silent.isdisjoint(set(rank.beside_silent) - set(rank.overtaken_in))


def _as_suspects(ranks: Sequence[model.NamedRank], reason: SuspectReason) -> tuple[Suspect, ...]:
    return tuple(Suspect(rank, reason) for rank in ranks[:MAX_SUSPECTS])


def _silent(communicator: model.Communicator) -> list[model.NamedRank]:
    return _missing(communicator, "unresponsive", "dead")


def _left(communicator: model.Communicator, known: Watch) -> list[model.NamedRank]:
    """Return the ranks that left, if they are fewer than half: else it is the others that have not left yet."""
    departed = _missing(communicator, "no_communicator")
    return departed if known.still_seconds >= LEFT_SECONDS and 2 * len(departed) < communicator.size else []


def _missing(communicator: model.Communicator, *reasons: model.MissingReason) -> list[model.NamedRank]:
    return [rank for rank in communicator.named if rank.reason in reasons]


ABORT_SHOWN_SECONDS = 60.0
"""How long an abort is shown: the flag stands for a second or two, a scrape comes every fifteen."""
MAX_ABORTED = 1024  # Of one job; the first that were seen are shown


class AbortedRank(NamedTuple):
    """A rank that aborted a communicator (its hash)."""

    hash: str
    comm_rank: int


class Abort(NamedTuple):
    """When (epoch seconds) a report last showed it; ``rank``: its rank in the largest communicator then, if known."""

    seconds: float
    rank: int | None


def aborted(before: Mapping[AbortedRank, Abort], report: model.Report, now_seconds: float) -> dict[AbortedRank, Abort]:
    """Return the ranks that aborted a communicator by this report, or by one not long before."""
    aborts = {who: known for who, known in before.items() if 0.0 <= now_seconds - known.seconds < ABORT_SHOWN_SECONDS}
    for communicator in report.communicators:
        for troubled_rank in communicator.troubled:
            if troubled_rank.trouble == "aborted":
                aborts[AbortedRank(communicator.hash, troubled_rank.comm_rank)] = Abort(now_seconds, troubled_rank.rank)
    return dict(itertools.islice(aborts.items(), MAX_ABORTED))


class JobReport(msgspec.Struct, frozen=True):
    """``owner`` is a process of the job, ``until`` (monotonic) the time to which the report is shown.

    ``world_size``: how many ranks the job has, None where that is not known; ``watches``: by communicator hash;
    ``asked_seconds``: time of its query (epoch).
    ``aborted``: the ranks that recently aborted a communicator; ``suspects``: by communicator hash.
    """

    owner: ProcessKey
    report: model.Report
    until: float
    world_size: int | None
    watches: dict[str, Watch]
    asked_seconds: float = 0.0
    aborted: dict[AbortedRank, Abort] = {}
    suspects: dict[str, tuple[Suspect, ...]] = {}

    def stalled_seconds(self) -> float | None:
        """Return for how long (s) a communicator had waited for blamed ranks at the report; None where none did.

        Not until now: since that report the job may have gone on.
        """
        return max((self.watches[comm].still_seconds for comm in self.suspects), default=None)

    def rank_label(self, rank: int | None) -> str:
        """The global rank, for one of the report's largest communicator; empty where that is but a part of the job."""
        whole = self.world_size in (None, self.report.ranks())
        return str(rank) if rank is not None and whole else ""
