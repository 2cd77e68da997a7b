"""From the lines of one file to the aggregates of its writers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from exporters.inspector.aggregate import Aggregate
from exporters.inspector.records import CollectivePerf, Header, Metadata, Record, Result, decode_lines, is_writer, kind


class Writer(NamedTuple):
    """Who wrote a record, by its own words."""

    hostname: str
    pid: int


GroupKey = tuple[str, int, int, str, int, str, int]
"""A RecordKey and the writer's pid: a rank of a communicator is on one host."""


def take(data: bytes, aggregate_of: Callable[[Writer], Aggregate | None], results: Counter[Result]) -> None:
    """Add whole lines to the aggregates of their writers, counting what became of each.

    ``aggregate_of`` returns None for a writer that is one too many.
    """
    records, malformed = decode_lines(data)
    if malformed:
        results[Result.MALFORMED] += malformed
    groups: dict[GroupKey, list[CollectivePerf]] = {}
    firsts: list[tuple[Header, Metadata]] = []
    latest: Metadata | None = None
    # The hot loop: most lines of a chunk share a few keys, so that per line there is one look-up and one append.
    for record in records:
        perf, header, metadata = record.coll_perf, record.header, record.metadata
        if perf is None or header is None or metadata is None:
            latest = _take_other(record, aggregate_of, results) or latest
            continue
        latest = metadata
        key = (
            header.id,
            header.rank,
            header.n_ranks,
            perf.coll,
            perf.coll_msg_size_bytes,
            perf.coll_timing_source,
            metadata.pid,
        )
        try:
            groups[key].append(perf)
        except KeyError:
            groups[key] = [perf]
            firsts.append((header, metadata))
    for (key, perfs), (header, metadata) in zip(groups.items(), firsts, strict=True):
        if not is_writer(metadata.hostname, metadata.pid):
            results[Result.GARBAGE] += len(perfs)
        elif (aggregate := aggregate_of(Writer(metadata.hostname, metadata.pid))) is None:
            results[Result.ORIGIN_LIMIT] += len(perfs)
        else:
            aggregate.add(key[:6], header, perfs, results)
    if latest is not None and (aggregate := _find(latest, aggregate_of)) is not None:
        aggregate.last_progress_us = max(aggregate.last_progress_us, latest.dump_timestamp_us)


def _take_other(
    record: Record, aggregate_of: Callable[[Writer], Aggregate | None], results: Counter[Result]
) -> Metadata | None:
    """Count a line that is not a collective, and learn memberships from it; its metadata when it is progress."""
    result = kind(record)
    metadata, header = record.metadata, record.header
    if result not in (Result.P2P, Result.DUMP_STATS) or metadata is None or header is None:
        results[result] += 1
        return None
    aggregate = _find(metadata, aggregate_of)
    if aggregate is None or not aggregate.note_member(header):
        results[Result.GARBAGE if aggregate is not None else Result.ORIGIN_LIMIT] += 1
        return None
    results[result] += 1
    return metadata if result is Result.P2P else None


def _find(metadata: Metadata, aggregate_of: Callable[[Writer], Aggregate | None]) -> Aggregate | None:
    if not is_writer(metadata.hostname, metadata.pid):
        return None
    return aggregate_of(Writer(metadata.hostname, metadata.pid))
