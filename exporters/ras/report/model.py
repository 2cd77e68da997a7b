"""One RAS report in any format: which communicators are accepted, and why others are skipped. Pure."""

import ipaddress
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import msgspec

Marks = bytes  # Rank and mark of each rank in turn, four bytes each; compact, because a report can hold 75,000 ranks
MARK_BYTES = 8  # Size of one rank's entry in Marks


def marks_of(counts: Iterable[tuple[int, Sequence[int]]]) -> Marks:
    """Return each rank's mark: a checksum of its launches by collective."""
    marks = ((rank, zlib.crc32(array("Q", launched).tobytes())) for rank, launched in counts)
    return array("I", chain.from_iterable(marks)).tobytes()


def differ(before: Marks, after: Marks) -> bool:
    """Return True when a rank in both has different marks."""
    if before == after:
        return False
    known = _by_rank(before)
    return any(known.get(rank, mark) != mark for rank, mark in _by_rank(after).items())


def taken_together(before: Marks, after: Marks) -> Marks:
    """Return the marks of ``after``, and the marks of ranks that only ``before`` has."""
    if before == after:
        return after
    return array("I", chain.from_iterable((_by_rank(before) | _by_rank(after)).items())).tobytes()


def _by_rank(marks: Marks) -> dict[int, int]:
    numbers = array("I", marks)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


MAX_COMMUNICATOR_RANKS = 1_000_000
MAX_COMMUNICATORS = 1_000
MAX_DEVICE = 1024
MAX_NAMED = 4_096
"""Missing ranks named in one report, over all its communicators; further ranks appear only in the counts."""
MAX_TROUBLED = 32
MAX_BEHIND = 32
"""Limits of the ranks named in one communicator: those with an error, and those furthest behind."""

MAX_BEHIND_NAMED = 4_096  # Ranks that have launched less, over all communicators of a report
MAX_MEMBERS = 4_096  # Memberships, or processes, of this node in one report

COLLECTIVES = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""The collectives whose launches RAS counts (section collective_counts of its JSON, 2.28.7 to 2.32.3)."""

MissingReason = Literal["dead", "unresponsive", "no_communicator", "unknown"]
"""Why a rank gave no data. dead: RAS declared its process dead. unresponsive: it did not answer. no_communicator: it
answered, and has destroyed the communicator or makes another. unknown: the report has no reason (2.24, 2.25)."""

Skipped = Literal["phantom", "implausible", "duplicate", "surplus", "unnamed", "unreadable", "rank_surplus"]
"""Why a communicator is skipped, in this order: it has no ranks (made by a race in the library); its numbers contradict
each other; another communicator has its hash; there are too many; the report gives no hash; it cannot be decoded.
``rank_surplus``: missing ranks that are not named, because there are too many."""

ERRORS = {
    1: "unhandled_cuda_error",
    2: "system_error",
    3: "internal_error",
    4: "invalid_argument",
    5: "invalid_usage",
    6: "remote_error",
    8: "timeout",
}
"""ncclResult_t of nccl.h; 0 is success and 7 in progress."""
Trouble = Literal["async_error", "init_error", "aborted"]


class ReportError(ValueError):
    """A reply that is not a report. ``cut``: it is the beginning of a report."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class Addresses(msgspec.Struct, frozen=True):
    """Ranges of addresses: the first and the last address of each, in network byte order."""

    ranges: tuple[tuple[bytes, bytes], ...]

    def __contains__(self, host: str) -> bool:
        try:
            packed = ipaddress.ip_address(host).packed
        except ValueError:
            return False
        return any(first <= packed <= last for first, last in self.ranges if len(first) == len(packed))


ANY_ADDRESS = Addresses(((bytes(4), b"\xff" * 4), (bytes(16), b"\xff" * 16)))


class RankLocation(NamedTuple):
    """Where a rank runs: address, pid in the job's pid namespace, NVML index; "" or -1 when unknown."""

    host: str
    pid: int
    gpu: int


class NamedRank(msgspec.Struct, gc=False):
    """A rank about which the report has a statement. ``rank``: its rank in the largest communicator, if known."""

    comm_rank: int
    location: RankLocation
    rank: int | None = None


class MissingRank(NamedRank, gc=False, kw_only=True):
    """A rank that gave no data."""

    reason: MissingReason


class TroubledRank(NamedRank, gc=False, kw_only=True):
    """A rank with an error (the name of its code), or a rank that has aborted the communicator (``error`` empty)."""

    trouble: Trouble
    error: str = ""


class BehindRank(NamedRank, gc=False, kw_only=True):
    """A rank that has launched less than others; ``lags``: operations behind, by collective.

    The other fields are hashes of other communicators. ``waits_in``: the rank is ahead in them, and waits for others.
    ``beside_silent``: other ranks do not answer in them, so this rank may wait for them. ``overtaken_in``: those of
    ``beside_silent`` in which this rank has launched as much as a rank that is ahead of it in the current communicator.
    So the silent ranks need not be the reason.
    """

    lags: dict[str, int]
    waits_in: tuple[str, ...] = ()
    beside_silent: tuple[str, ...] = ()
    overtaken_in: tuple[str, ...] = ()


class Launches(msgspec.Struct):
    """The launches of a communicator's ranks: the least and the most by collective.

    ``marks`` show a change between two reports. ``behind``: the ranks that others wait for, none if they would be the
    majority. ``differ``: the ranks have not all launched the same.
    """

    extremes: dict[str, tuple[int, int]]
    marks: Marks
    differ: bool
    behind: tuple[BehindRank, ...] = ()


class Communicator(msgspec.Struct):
    """One communicator: its hash (hex), the number of its ranks, and how many of them gave data.

    ``missing`` counts the ranks without data: ``unresponsive`` of these did not answer, ``dead`` belong to processes
    declared dead, and ``named`` are listed. ``initializing``, ``finalizing`` and ``aborted`` count ranks that answered.
    None: the report lacks the number. ``secondary``: a checksum of NCCL's secondary hash, if the report has it.
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
    secondary: str = ""

    def ranks(self) -> tuple[NamedRank, ...]:
        """Return all listed ranks."""
        return (*self.named, *self.troubled, *(self.launches.behind if self.launches is not None else ()))


class CommunicatorMember(msgspec.Struct, frozen=True, gc=False):
    """A rank that answered: its location, its communicator (hash) with the size, and its rank there."""

    location: RankLocation
    hash: str
    size: int
    comm_rank: int


class Report(msgspec.Struct, frozen=True):
    """``processes``: (address, pid in the job's pid namespace) of ranks that answered; none in a text report.

    ``timeouts``: how often the library stopped waiting for peers. ``skipped``: communicators left out, by reason.
    ``members``: the memberships of the requested processes.
    """

    version: str
    communicators: tuple[Communicator, ...]
    processes: frozenset[tuple[str, int]]
    timeouts: int
    skipped: dict[Skipped, int]
    members: tuple[CommunicatorMember, ...] = ()

    def ranks(self) -> int:
        """Return the number of ranks in the largest communicator."""
        return max((communicator.size for communicator in self.communicators), default=0)

    def missing(self) -> int:
        """Return how many ranks the largest communicator misses; the maximum of several equally large communicators."""
        ranks = self.ranks()
        return max((comm.missing for comm in self.communicators if comm.size == ranks), default=0)


def accept(communicators: Iterable[Communicator], skipped: Counter[Skipped]) -> tuple[Communicator, ...]:
    """Return the plausible communicators, the first of each hash; count the others in ``skipped``.

    At the limit, the largest communicators stay first, then communicators in trouble, then the next in size.
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
    chosen = list(accepted.values())
    if len(chosen) > MAX_COMMUNICATORS:
        skipped["surplus"] += len(chosen) - MAX_COMMUNICATORS
        largest = max(communicator.size for communicator in chosen)
        chosen.sort(
            key=lambda comm: (comm.size != largest, not (comm.missing or comm.troubled or comm.aborted), -comm.size)
        )
        del chosen[MAX_COMMUNICATORS:]
    _bound_names(chosen, skipped)
    return tuple(chosen)


def _bound_names(chosen: list[Communicator], skipped: Counter[Skipped]) -> None:
    """Limit a report's named ranks: MAX_NAMED missing ranks, and MAX_BEHIND_NAMED ranks that have launched less.

    Of the latter, those in the largest communicators stay: which communicators stall is not known yet.
    """
    room = MAX_NAMED
    for communicator in chosen:
        if len(communicator.named) > room:
            skipped["rank_surplus"] += len(communicator.named) - room
            communicator.named = communicator.named[:room]
        room -= len(communicator.named)
    room = MAX_BEHIND_NAMED
    for communicator in sorted(chosen, key=lambda communicator: -communicator.size):
        if communicator.launches is not None:
            communicator.launches.behind = communicator.launches.behind[:room]
            room -= len(communicator.launches.behind)


def plain_address(text: str) -> str | None:
    """Return an IP address in its usual form; "" for "unknown", None for other text."""
    if text == "unknown":
        return ""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def _is_plausible(communicator: Communicator) -> bool:
    size, responding, missing = communicator.size, communicator.responding, communicator.missing
    if not 0 < size <= MAX_COMMUNICATOR_RANKS or not 0 <= responding <= size - missing:
        return False
    if len(communicator.named) > missing:
        return False
    ranks = {rank.comm_rank for rank in communicator.named}
    return len(ranks) == len(communicator.named) and all(0 <= rank < communicator.size for rank in ranks)
