"""One RAS report, whatever its format: what of it is believed, and why the rest is not. Pure."""

import ipaddress
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

Marks = bytes  # Of each rank in turn its number and its mark, four bytes each; compact, as a report may hold 75,000
MARK_BYTES = 8  # Of one rank


def marks_of(counts: Iterable[tuple[int, Sequence[int]]]) -> Marks:
    """Return the marks of ranks, each with its launches by collective."""
    packed = array("I")
    for rank, launched in counts:
        packed.extend((rank, zlib.crc32(array("Q", launched).tobytes())))
    return packed.tobytes()


def differ(before: Marks, after: Marks) -> bool:
    """Return True when a rank that is in both has another mark."""
    if before == after:
        return False
    known = _by_rank(before)
    return any(known.get(rank, mark) != mark for rank, mark in _by_rank(after).items())


def taken_together(before: Marks, after: Marks) -> Marks:
    """Return the marks of ``after``, and of the ranks that only ``before`` has."""
    if before == after:
        return after
    packed = array("I")
    for item in (_by_rank(before) | _by_rank(after)).items():
        packed.extend(item)
    return packed.tobytes()


def _by_rank(marks: Marks) -> dict[int, int]:
    numbers = array("I", marks)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


MAX_COMMUNICATOR_RANKS = 1_000_000
MAX_COMMUNICATORS = 1_000
MAX_DEVICE = 1024
MAX_NAMED = 4_096
"""Missing ranks named in one report, over all its communicators; those beyond show in the counts alone."""
MAX_TROUBLED = 32
MAX_BEHIND = 32
"""Named in one communicator: of the ranks with an error, and of those that have launched less, the furthest behind."""

MAX_BEHIND_NAMED = 4_096  # Of those that have launched less, over all communicators of a report
MAX_MEMBERS = 4_096  # Places of this node's processes taken from one report

COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""What RAS counts the launches of; no others (section collective_counts of its JSON, 2.28.7 to 2.32.3)."""

MissingReason = Literal["dead", "unresponsive", "no_communicator", "unknown"]
"""Why a rank gave no data: its process is declared dead; it did not answer; it answered that it is not in this
communicator (destroyed it, or makes another one); the report does not tell (text of 2.24 and 2.25)."""

Skipped = Literal["phantom", "implausible", "duplicate", "surplus", "unnamed", "unreadable", "rank_surplus"]
"""Why a communicator is left out: it has no ranks (made by a race in the library), its numbers contradict each other,
another has its hash, there are too many, the report gives no hash, it cannot be decoded; or missing ranks not named:
there are too many."""

ERRORS = {
    1: "unhandled_cuda_error",
    2: "system_error",
    3: "internal_error",
    4: "invalid_argument",
    5: "invalid_usage",
    6: "remote_error",
}
"""ncclResult_t of nccl.h; 0 is success and 7 in progress."""
Trouble = Literal["async_error", "init_error", "aborted"]


class ReportError(ValueError):
    """A reply that is no report. ``cut``: it is the beginning of one."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class Place(NamedTuple):
    """What a rank runs on: address, pid by the job's pid namespace, NVML index; empty or -1 where unknown."""

    host: str
    pid: int
    gpu: int


class NamedRank(msgspec.Struct, gc=False):
    """A rank that the report says something of. ``rank``: its rank in the report's largest communicator, if known."""

    comm_rank: int
    place: Place
    rank: int | None = None


class MissingRank(NamedRank, gc=False, kw_only=True):
    """A rank without data."""

    reason: MissingReason


class TroubledRank(NamedRank, gc=False, kw_only=True):
    """A rank with an error, by the name of its code, or one that has aborted the communicator (``error`` empty)."""

    trouble: Trouble
    error: str = ""


class BehindRank(NamedRank, gc=False, kw_only=True):
    """A rank that has launched less than others: ``lags`` by collective.

    ``waits_in``: other communicators (hashes) where it has launched what others have not, and so waits for them;
    ``beside_silent``: others with ranks that do not answer, so that it may wait there too; ``overtaken_in``: those
    of them where a rank has launched as much, and yet is ahead of it here.
    """

    lags: dict[str, int]
    waits_in: tuple[str, ...] = ()
    beside_silent: tuple[str, ...] = ()
    overtaken_in: tuple[str, ...] = ()


class Launches(msgspec.Struct):
    """What a communicator's ranks have launched: the least and the most by collective.

    ``marks`` tell two reports apart (marks.py). ``behind``: the ranks that others wait for, none when they are the
    majority: then it is unknown. ``differ``: not all have launched the same.
    """

    extremes: dict[str, tuple[int, int]]
    marks: Marks
    differ: bool
    behind: tuple[BehindRank, ...] = ()


class Communicator(msgspec.Struct):
    """One communicator: its hash (hex), ranks in all, and how many gave data.

    ``missing`` counts those that did not: ``unresponsive`` ones of processes that did not answer, and ``dead`` ones
    of processes declared dead; ``named`` are those of them that are named. ``initializing``, ``finalizing`` and
    ``aborted`` count ranks that answered. None where the report lacks it.
    """

    hash: str
    size: int
    responding: int
    missing: int
    unresponsive: int | None
    dead: int | None
    named: tuple[MissingRank, ...] = ()
    initializing: int | None = None
    finalizing: int | None = None
    aborted: int | None = None
    troubled: tuple[TroubledRank, ...] = ()
    launches: Launches | None = None

    def ranks(self) -> tuple[NamedRank, ...]:
        """Return all ranks that it names."""
        return (*self.named, *self.troubled, *(self.launches.behind if self.launches is not None else ()))


class CommunicatorMember(msgspec.Struct, frozen=True, gc=False):
    """A rank that answered: what it runs on, its communicator (hash) with the size, and its rank there."""

    place: Place
    hash: str
    size: int
    comm_rank: int


class Report(msgspec.Struct, frozen=True):
    """``processes``: (address, pid) of ranks that answered, pids by the job's pid namespace; text names none.

    ``timeouts``: how often the library gave up waiting for peers. ``skipped``: what was left out. ``members``: the
    places of the requested processes.
    """

    version: str
    communicators: tuple[Communicator, ...]
    processes: frozenset[tuple[str, int]]
    timeouts: int
    skipped: dict[Skipped, int]
    members: tuple[CommunicatorMember, ...] = ()

    def ranks(self) -> int:
        """Ranks of the largest communicator."""
        return max((communicator.size for communicator in self.communicators), default=0)

    def missing(self) -> int:
        """Ranks missing from the largest communicator (the most, among equals)."""
        ranks = self.ranks()
        return max(
            (communicator.missing for communicator in self.communicators if communicator.size == ranks), default=0
        )


def accept(communicators: Iterable[Communicator], skipped: Counter[Skipped]) -> tuple[Communicator, ...]:
    """Return the communicators that can be true, the first of each hash; the others are counted in ``skipped``.

    Of too many the largest are kept, of one size (the whole job's), then those in trouble, then the next in size.
    """
    accepted: dict[str, Communicator] = {}
    for communicator in communicators:
        if communicator.size == 0:
            skipped["phantom"] += 1
        elif not _is_plausible(communicator):
            skipped["implausible"] += 1
        elif communicator.hash in accepted:
            skipped["duplicate"] += 1
        else:
            accepted[communicator.hash] = communicator
    kept = list(accepted.values())
    if len(kept) > MAX_COMMUNICATORS:
        skipped["surplus"] += len(kept) - MAX_COMMUNICATORS
        largest = max(communicator.size for communicator in kept)
        kept.sort(
            key=lambda communicator: (communicator.size != largest, not _in_trouble(communicator), -communicator.size)
        )
        del kept[MAX_COMMUNICATORS:]
    _bound_names(kept, skipped)
    return tuple(kept)


def _bound_names(kept: list[Communicator], skipped: Counter[Skipped]) -> None:
    """Name no more missing ranks than MAX_NAMED, and of those behind first the ones in the largest communicators.

    Which of them stand still is not known yet.
    """
    room = MAX_NAMED
    for communicator in kept:
        if len(communicator.named) > room:
            skipped["rank_surplus"] += len(communicator.named) - room
            communicator.named = communicator.named[:room]
        room -= len(communicator.named)
    room = MAX_BEHIND_NAMED
    for communicator in sorted(kept, key=lambda communicator: -communicator.size):
        if communicator.launches is not None:
            communicator.launches.behind = communicator.launches.behind[:room]
            room -= len(communicator.launches.behind)


def plain_address(text: str) -> str | None:
    """An IP address in its usual form; empty for "unknown", None for anything else."""
    if text == "unknown":
        return ""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def _in_trouble(communicator: Communicator) -> bool:
    return bool(communicator.missing or communicator.troubled or communicator.aborted)


def _is_plausible(communicator: Communicator) -> bool:
    if not 0 < communicator.size <= MAX_COMMUNICATOR_RANKS or communicator.responding < 0 or communicator.missing < 0:
        return False
    if (
        communicator.responding + communicator.missing > communicator.size
        or len(communicator.named) > communicator.missing
    ):
        return False
    ranks = {rank.comm_rank for rank in communicator.named}
    return len(ranks) == len(communicator.named) and all(0 <= rank < communicator.size for rank in ranks)
