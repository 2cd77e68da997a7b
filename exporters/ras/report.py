"""One RAS report, whatever its format: what of it is believed, and why the rest is not. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

MAX_COMMUNICATOR_RANKS = 1_000_000
MAX_COMMUNICATORS = 1_000
MAX_DEVICE = 1024
MAX_NAMED = 4_096
"""Missing ranks named in one report, over all its communicators; those beyond show in the counts alone."""

Reason = Literal["dead", "unresponsive", "no_communicator", "unknown"]
"""Why a rank gave no data: its process is declared dead; it did not answer; it answered that it is not in this
communicator (destroyed it, or makes another one); the report does not tell (text of 2.24 and 2.25)."""

Skipped = Literal["phantom", "implausible", "duplicate", "surplus", "unnamed", "unreadable", "rank_surplus"]
"""Why a communicator is left out: it has no ranks (made by a race in the library), its numbers contradict each other,
another has its hash, there are too many, the report gives no hash, it cannot be decoded; or missing ranks not named:
there are too many."""


class ReportError(ValueError):
    """A reply that is no report. ``cut``: it is the beginning of one."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class MissingRank(msgspec.Struct, frozen=True, gc=False):
    """A rank without data. ``host`` is its address and ``gpu`` its NVML index; empty where the report tells neither."""

    comm_rank: int
    host: str
    gpu: str
    reason: Reason


class Communicator(msgspec.Struct, frozen=True):
    """One communicator: its hash (hex), ranks in all, and how many gave data.

    ``missing`` counts those that did not, of which ``unresponsive`` are of processes that did not answer and ``dead``
    of processes declared dead; None where the report does not tell. ``named`` are those of them that are named.
    """

    hash: str
    size: int
    responding: int
    missing: int
    unresponsive: int | None
    dead: int | None
    named: tuple[MissingRank, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """``processes``: (address, pid) of ranks that answered, pids by the job's pid namespace; text names none.

    ``timeouts``: how often the library gave up waiting for peers. ``skipped``: what was left out.
    """

    version: str
    communicators: tuple[Communicator, ...]
    processes: frozenset[tuple[str, int]]
    timeouts: int
    skipped: dict[Skipped, int]

    def ranks(self) -> int:
        """Ranks of the largest communicator."""
        return max((each.size for each in self.communicators), default=0)

    def missing(self) -> int:
        """Ranks missing from the largest communicator (the most, among equals)."""
        ranks = self.ranks()
        return max((each.missing for each in self.communicators if each.size == ranks), default=0)


def accept(found: Iterable[Communicator], skipped: Counter[Skipped]) -> tuple[Communicator, ...]:
    """The communicators that can be true, the first of each hash; the others are counted in ``skipped``."""
    accepted: dict[str, Communicator] = {}
    for each in found:
        if each.size == 0:
            skipped["phantom"] += 1
        elif not _is_plausible(each):
            skipped["implausible"] += 1
        elif each.hash in accepted:
            skipped["duplicate"] += 1
        elif len(accepted) >= MAX_COMMUNICATORS:
            skipped["surplus"] += 1
        else:
            accepted[each.hash] = each
    return tuple(_within_budget(accepted.values(), skipped))


def _within_budget(found: Iterable[Communicator], skipped: Counter[Skipped]) -> Iterator[Communicator]:
    left = MAX_NAMED
    for each in found:
        if len(each.named) > left:
            skipped["rank_surplus"] += len(each.named) - left
            each = msgspec.structs.replace(each, named=each.named[:left])  # noqa: PLW2901  # the same, cut
        left -= len(each.named)
        yield each


def plain_address(text: str) -> str | None:
    """An IP address in its usual form; empty for "unknown", None for anything else."""
    if text == "unknown":
        return ""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def _is_plausible(each: Communicator) -> bool:
    if not 0 < each.size <= MAX_COMMUNICATOR_RANKS or each.responding < 0 or each.missing < 0:
        return False
    if each.responding + each.missing > each.size or len(each.named) > each.missing:
        return False
    ranks = {rank.comm_rank for rank in each.named}
    return len(ranks) == len(each.named) and all(0 <= rank < each.size for rank in ranks)
