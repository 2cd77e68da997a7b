"""The families, and how they are made of the dumps that are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.flight_recorder.book import ShownDump

_PER_GROUP = "after a timeout 1 per rank and process group of several ranks, at most 32 per rank; for an hour"

ENQUEUED = Family(
    "rankwatch_flight_recorder_enqueued_sequence",
    "gauge",
    "Number of the last collective of a process group that the rank had begun when it wrote its dump. A "
    "rank that has begun fewer than the others wait for blocks them.",
    ("job_id", "rank", "process_group"),
    _PER_GROUP,
    "max",
)
UNFINISHED = Family(
    "rankwatch_flight_recorder_unfinished_sequence",
    "gauge",
    "Number of the first collective of a process group that the rank had begun and not completed, and which it is. "
    "dtype, elements: of what the rank gives, where all ranks must give the same. state: started on the GPU, or only "
    "scheduled (or its start is not timed).",
    ("job_id", "rank", "process_group", "description", "operation", "dtype", "elements", "state"),
    "after a timeout 1 per rank and process group that it waits in; for an hour",
    "max",
)
WRITTEN = Family(
    "rankwatch_flight_recorder_dump_timestamp_seconds",
    "gauge",
    "When the rank wrote the dump that is shown, or when it was read where that was earlier.",
    ("job_id", "rank"),
    "after a timeout 1 per rank; for an hour",
    "max",
)
DUMPS = Family(
    "rankwatch_flight_recorder_dumps_total",
    "counter",
    "Files of flight recorders that were found, by what became of them: read, incomplete, malformed, too_large, "
    "other_rank, other_job (or of two jobs of one user), other_user, earlier_process, no_room, unanswered.",
    ("result",),
    "1 per result seen",
)
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
    return [one.metric for one in rows.values()]
