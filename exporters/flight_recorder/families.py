"""The metric families, and their rendering from the shown dumps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.flight_recorder.book import ShownDump

_PER_GROUP = "after a timeout 1 per rank and process group of several ranks, at most 32 per rank; for an hour"

ENQUEUED = Family(
    "rankwatch_flight_recorder_enqueued_sequence",
    "gauge",
    "Number of the last collective in the process group that the rank had begun when it wrote its dump. A rank with a "
    "lower number than the others wait for blocks them.",
    ("job_id", "rank", "process_group"),
    _PER_GROUP,
    "max",
)
UNFINISHED = Family(
    "rankwatch_flight_recorder_unfinished_sequence",
    "gauge",
    "Number of the first collective in the process group that the rank had begun but not completed. dtype, elements: "
    "its input, if all ranks must pass the same. state: started (on the GPU) or scheduled (not started, or start "
    "times are off).",
    ("job_id", "rank", "process_group", "description", "operation", "dtype", "elements", "state"),
    "after a timeout 1 per rank and process group that it waits in; for an hour",
    "max",
)
WRITTEN = Family(
    "rankwatch_flight_recorder_dump_timestamp_seconds",
    "gauge",
    "Time when the rank wrote the shown dump, or when the exporter read it if that is earlier.",
    ("job_id", "rank"),
    "after a timeout 1 per rank; for an hour",
    "max",
)
DUMPS = Family(
    "rankwatch_flight_recorder_dumps_total",
    "counter",
    "Flight recorder files found, by result: read, incomplete, malformed, too_large, "
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
