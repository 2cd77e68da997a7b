"""What the checkpoint holds of RAS: since when communicators stand still. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds
from exporters.ras.asking.jobs import OwnedJob
from exporters.ras.report.hangs import Watch
from exporters.ras.report.marks import MARK_BYTES, Marks
from exporters.ras.report.model import MAX_NAMED

MAX_SAVED_BYTES = 1024 * 1024
"""Of all jobs' watches, in turns: none keeps out another's."""
MAX_TEXT = 1024


class SavedWatch(msgspec.Struct, frozen=True):
    """A Watch, and its communicator's hash."""

    hash: Annotated[str, msgspec.Meta(max_length=32)]
    marks: Annotated[bytes, msgspec.Meta(max_length=MAX_SAVED_BYTES)]
    since_seconds: SavedSeconds
    reports: SavedCount
    seen_seconds: SavedSeconds
    unheard: Annotated[dict[int, SavedSeconds], msgspec.Meta(max_length=MAX_NAMED)] = {}
    launched_after_seconds: SavedSeconds = 0.0


class SavedJob(msgspec.Struct, frozen=True):
    """The watches of one job."""

    job_id: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    owner: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    watches: list[SavedWatch]


def to_save(watches: Mapping[OwnedJob, Mapping[str, Watch]]) -> list[SavedJob]:
    """Return the jobs' watches, as many as there is room for."""
    found: dict[OwnedJob, list[SavedWatch]] = {}
    room = MAX_SAVED_BYTES
    for job, name, each in _in_turns(watches):
        if each.size_bytes > room:
            continue
        room -= each.size_bytes
        saved = SavedWatch(
            name,
            each.marks,
            each.since_seconds,
            each.reports,
            each.seen_seconds,
            each.unheard,
            each.launched_after_seconds,
        )
        found.setdefault(job, []).append(saved)
    return [SavedJob(job.job_id, job.owner, saved) for job, saved in found.items()]


def _in_turns(watches: Mapping[OwnedJob, Mapping[str, Watch]]) -> Iterator[tuple[OwnedJob, str, Watch]]:
    """One of each job, then the next of each: those seen last first, of these what stands still the longest."""
    turns = [
        (turn, job, name)
        for job, known in watches.items()
        for turn, name in enumerate(
            sorted(known, key=lambda name: (-known[name].seen_seconds, known[name].since_seconds))
        )
    ]
    return ((job, name, watches[job][name]) for _, job, name in sorted(turns))


def restored(saved: Iterable[SavedJob]) -> dict[OwnedJob, dict[str, Watch]]:
    """Return the watches that were saved; marks of another length than any have are damage, and left out."""
    return {
        OwnedJob(job.job_id, job.owner): {
            each.hash: Watch(
                Marks(each.marks),
                each.since_seconds,
                each.reports,
                each.seen_seconds,
                each.unheard,
                each.launched_after_seconds,
            )
            for each in job.watches
            if len(each.marks) % MARK_BYTES == 0
        }
        for job in saved
    }
