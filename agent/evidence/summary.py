"""The summary next to a bundle (``.json``): job, time, trigger, the statements about ranks, and the list of parts."""

from typing import Annotated, Literal

import msgspec

MAX_LISTED = 4096
"""Limit of each list of a summary."""
MAX_TEXT = 512

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Moment = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]
"""Seconds since the epoch, before the year 10000, where Python's dates end."""
Trigger = Literal["dead", "unresponsive", "hardware", "silent", "stalled", "asked", "alert"]
"""``alert``: only in bundles of versions before 0.2.0, which also made bundles for firing alerts that page."""
Witness = Literal["verdict", "records", "ras", "flight_recorder", "hardware", "kernel_log", "job_log", "stacks"]


class RankAtTime(msgspec.Struct, frozen=True):
    """A rank of this node. ``state``: as in rankwatch_rank_state. ``since``: start of the state, epoch seconds.

    ``last_operation``: text from the rank's records ("last completed AllReduce no. 812, ..."). ``quiet_seconds``: age
    of this operation.
    """

    rank: Text
    pid: int
    state: Text
    since: Moment
    how: Text = ""
    gpu: Text = ""
    last_operation: Text = ""
    quiet_seconds: float | None = None


class Word(msgspec.Struct, frozen=True):
    """A statement about a rank by one source (``witness``).

    ``says``: a sentence without the rank ("died of SIGKILL").
    """

    rank: Text
    witness: Witness
    says: Text
    blames: bool


class Event(msgspec.Struct, frozen=True):
    """An event at ``at`` (epoch seconds) about ``rank`` (empty: the job or the node)."""

    at: Moment
    rank: Text
    what: Text
    source: Text


class Part(msgspec.Struct, frozen=True):
    """A file of the bundle. ``failed``: why the file is missing or cut; empty if it is complete."""

    name: Text
    size_bytes: int
    took_seconds: float
    failed: Text = ""


class Summary(msgspec.Struct, frozen=True):
    """The whole summary. ``suspects``: rank numbers, the most suspicious first. ``user``: the user of the job."""

    format: Literal[1]
    job_id: Text
    node: Text
    taken_at: Moment
    trigger: Trigger
    because: Text
    version: Text
    ranks: Annotated[list[RankAtTime], msgspec.Meta(max_length=MAX_LISTED)]
    words: Annotated[list[Word], msgspec.Meta(max_length=MAX_LISTED)]
    suspects: Annotated[list[Text], msgspec.Meta(max_length=MAX_LISTED)]
    timeline: Annotated[list[Event], msgspec.Meta(max_length=MAX_LISTED)]
    parts: Annotated[list[Part], msgspec.Meta(max_length=MAX_LISTED)]
    user: Text = ""
