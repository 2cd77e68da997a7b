"""Keys and labels that exporters and the rank table share."""

from collections.abc import Collection
from typing import Annotated, NamedTuple

import msgspec

COMM_DIGITS = 14
MAX_GENERATION = (1 << 62) - 1
"""Limit of truncations of a file; a higher number in a checkpoint means that the checkpoint is damaged."""
UNKNOWN_RANK = "unknown"
"""Rank label of records whose rank inside a process of several ranks is unknown."""
MAX_TICKS = 2**46  # 20,000 years: a damaged checkpoint can name any time


class ProcessKey(NamedTuple):
    """A process of this boot: its pid in the agent's pid namespace, and its start in clock ticks since the boot."""

    pid: int
    start_ticks: Annotated[int, msgspec.Meta(ge=0, le=MAX_TICKS)]


class RankLabel(NamedTuple):
    """The two labels of every series of a rank; ``rank`` is the global rank."""

    job_id: str
    rank: str


def rank_order(rank: str) -> tuple[bool, int, str]:
    """Return a sort key for ranks: numbers in numeric order, then other names in alphabetical order."""
    is_number = rank.isascii() and rank.isdecimal() and len(rank) < 10
    return not is_number, int(rank) if is_number else 0, rank


def label_fields(labels: Collection[RankLabel]) -> dict[str, str]:
    """Return log fields with the job and ranks of a process; both are ``unknown`` without labels."""
    ranks = ",".join(label.rank for label in labels)
    return {"job_id": next((label.job_id for label in labels), UNKNOWN_RANK), "rank": ranks or UNKNOWN_RANK}


class WriterKey(NamedTuple):
    """The writer of a stream of records: the file, its generation, and the host name and pid in the file's name.

    ``pid`` is in the writer's pid namespace, ``hostname`` in its UTS namespace. ``generation`` counts truncations of
    the file, so that a restarted writer of the same file gets another key.
    """

    device: int
    inode: int
    generation: Annotated[int, msgspec.Meta(ge=0, le=MAX_GENERATION)]
    hostname: str
    pid: int


class Membership(msgspec.Struct, frozen=True, gc=False):
    """A rank's membership of a communicator, from one record or report.

    ``comm``: the communicator's hash in the form of :func:`comm_label`. ``nodes``: NCCL's count of NVLink domains.
    """

    comm: str
    comm_rank: int
    size: int
    name: str = ""
    nodes: int = 0


def comm_label(hash_text: str) -> str:
    """Return the `comm` label for a communicator hash in hex, with or without ``0x``; a suffix after ``-`` is kept.

    The label is the first 14 digits of the unpadded hash; shorter hashes are not cut. Inspector cuts its ids to 16
    characters ("0x" and 14 digits: plugins/profiler/inspector, NCCL 2.28-2.30), RAS pads them to 16 digits.
    """
    digits, dash, secondary = hash_text.removeprefix("0x").removeprefix("0X").lower().partition("-")
    return (digits.lstrip("0") or "0")[:COMM_DIGITS] + dash + secondary
