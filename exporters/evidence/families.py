"""What the exporter shows of its bundles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sdk.metrics import Family, Metric

TAKEN = Family(
    "rankwatch_evidence_bundle_timestamp_seconds",
    "gauge",
    "When this node's newest bundle of evidence about the job was taken; file: its name in the directory of bundles.",
    ("job_id", "file"),
    "1 per job with a bundle here",
    "max",
)
BUNDLES = Family(
    "rankwatch_evidence_bundles",
    "gauge",
    "Bundles of evidence in this node's directory of them.",
    aggregate="sum",
)
FAILURES = Family(
    "rankwatch_evidence_failures_total",
    "counter",
    "Parts that are missing in bundles, by part: an exporter's name, or processes; bundle: it could not be written; "
    "places: it had no place among those of other users.",
    ("part",),
    "1 per part that failed",
    "sum",
)


class Taken(NamedTuple):
    """The newest bundle of a job: when (s since the epoch), under which name."""

    at: float
    file: str


class EvidenceSnapshot(NamedTuple):
    """What is shown."""

    bundles: int
    taken: Mapping[str, Taken]
    failures: Mapping[str, int]


def render(found: EvidenceSnapshot) -> Iterable[Metric]:
    """Return the series."""
    taken, failures = TAKEN.rows(), FAILURES.rows()
    for job_id, each in found.taken.items():
        taken.add((job_id, each.file), each.at)
    for part, count in found.failures.items():
        failures.add((part,), count)
    yield BUNDLES.single(found.bundles)
    yield from (taken.metric, failures.metric)
