"""The names by which sources and the rank table speak of the same thing."""

from collections.abc import Collection
from typing import Annotated, NamedTuple

import msgspec

COMM_DIGITS = 14
MAX_GENERATION = (1 << 62) - 1
"""No file is truncated more often: a checkpoint with a higher number is damaged."""
UNKNOWN_RANK = "unknown"
"""Rank label of records whose rank inside a process of several ranks is unknown."""


class ProcessKey(NamedTuple):
    """One process of this boot: its pid as the agent sees it, and its start time in clock ticks after boot."""

    pid: int
    start_ticks: int


class RankLabel(NamedTuple):
    """The two labels that every rank series carries; ``rank`` is the global rank."""

    job_id: str
    rank: str


def rank_order(rank: str) -> tuple[bool, int, str]:
    """Return what ranks are sorted by: numbers as such, then the others by name."""
    is_number = rank.isascii() and rank.isdecimal() and len(rank) < 10
    return not is_number, int(rank) if is_number else 0, rank


def label_fields(labels: Collection[RankLabel]) -> dict[str, str]:
    """The fields of a log line that name the ranks of one process; both are ``unknown`` while it has no label."""
    ranks = ",".join(label.rank for label in labels)
    return {"job_id": next((label.job_id for label in labels), UNKNOWN_RANK), "rank": ranks or UNKNOWN_RANK}


class WriterKey(NamedTuple):
    """Who wrote a stream of records: the file, which generation of it, and the writer by its own words.

    ``pid`` is that of the writer's pid namespace, ``hostname`` that of its UTS namespace. ``generation`` counts how
    often the file was truncated, so that a restarted writer of the same name has another key.
    """

    device: int
    inode: int
    generation: Annotated[int, msgspec.Meta(ge=0, le=MAX_GENERATION)]
    hostname: str
    pid: int


class Membership(msgspec.Struct, frozen=True, gc=False):
    """A rank's place in one communicator, as one record or report tells it.

    ``comm`` is the communicator's hash in the form of :func:`comm_label`, ``nodes`` NCCL's count of NVLink domains.
    """

    comm: str
    comm_rank: int
    size: int
    name: str = ""
    nodes: int = 0


def comm_label(hash_text: str) -> str:
    """Return the `comm` label for a communicator hash written as hex, with or without ``0x``.

    The first 14 digits of the unpadded form; shorter hashes whole. Inspector cuts its ids to 16 characters ("0x" and
    14 digits: plugins/profiler/inspector, NCCL 2.28-2.30), RAS pads to 16 digits.
    """
    digits = hash_text.removeprefix("0x").removeprefix("0X").lower()
    return (digits.lstrip("0") or "0")[:COMM_DIGITS]
