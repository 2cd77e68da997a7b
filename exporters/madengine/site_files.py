"""Reads whole files that a site names: perf.csv, tables of results and manifests. Each when it changes.

All of it blocks, and belongs to the exporter's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from agent.sdk.exporter import Clock
from agent.sdk.files import FilePlace, FollowedFile, TextFiles, read_changed
from exporters.madengine.manifest import MAX_MANIFEST_BYTES, ManifestModel, read_manifest
from exporters.madengine.perf_csv import MAX_CSV_BYTES, MAX_RESULTS, PerfRow, read_rows
from exporters.madengine.tables import PlacedTable, ResultTable, node_of, read_table

MAX_TABLES = 128
"""Read at one look; of more those written last, of each user as many."""
MAX_TABLE_BYTES = 1024 * 1024
"""Of one table: some 10,000 results."""
MAX_MANIFESTS = 64
LOOK_BYTES = 8 * 1024 * 1024

T = TypeVar("T")
JobOf = Callable[[int, str], str]
"""The label of the job with this id, where a file of this user (uid) may speak for it; else empty."""


class JobManifest(NamedTuple):
    """What a job was asked to run."""

    job_id: str
    models: tuple[ManifestModel, ...]


class SiteFacts(NamedTuple):
    """What the files of a site say."""

    rows: tuple[PerfRow, ...] = ()
    tables: tuple[PlacedTable, ...] = ()
    manifests: tuple[JobManifest, ...] = ()


class ChangedFiles(Generic[T]):
    """What files say, by path, read again when one changes; one half written, or too long, says what it said before.

    At one look about LOOK_BYTES are read, of the first files first; what is left is read at the next ones.
    """

    def __init__(self, max_bytes: int, read: Callable[[bytes], T | None]) -> None:
        self._max_bytes = max_bytes
        self._read = read
        self._places: dict[str, FilePlace] = {}
        self.found: dict[str, T] = {}

    def look(self, paths: Mapping[str, int | None]) -> None:
        """Look at these files and forget all others. By path: the user (uid) whose the file must be, None for any."""
        for path in self._places.keys() - paths.keys():
            self._forget(path)
        left = LOOK_BYTES
        for path, uid in paths.items():
            if left <= 0:
                break
            try:
                changed = read_changed(path, self._max_bytes, self._places.get(path), uid)
            except OSError:
                self._forget(path)
                continue
            if changed is not None:
                left -= len(changed[1])
                self._places[path] = changed[0]
                said = self._read(changed[1]) if len(changed[1]) <= self._max_bytes else None
                if said is not None:
                    self.found[path] = said

    def _forget(self, path: str) -> None:
        self._places.pop(path, None)
        self.found.pop(path, None)


class ResultReader:
    """The rows of a site's perf.csv files."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = dict.fromkeys(paths)
        self._files = ChangedFiles(MAX_CSV_BYTES, read_rows)

    def look(self) -> tuple[PerfRow, ...]:
        """The rows of all files."""
        self._files.look(self._paths)
        rows = self._files.found
        found = {(row.model, row.metric): row for path in self._paths for row in rows.get(path, ())}
        return tuple(found.values())[-MAX_RESULTS:]


class TableReader:
    """The tables of several results that lie in ``node_N`` of a job's directory."""

    def __init__(self, patterns: Sequence[str], clock: Clock) -> None:
        self._listing = TextFiles(patterns, clock.monotonic)
        self._files: ChangedFiles[ResultTable] = ChangedFiles(MAX_TABLE_BYTES, read_table)

    def look(self) -> tuple[PlacedTable, ...]:
        """All tables, those of one job in the order of their paths."""
        named: dict[str, tuple[str, int]] = {}
        users: dict[str, int | None] = {}
        for file in newest(self._listing.discover(), MAX_TABLES):
            job_id, node_rank = self._listing.job_id(file), node_of(file.path)
            if job_id is not None and node_rank is not None:
                named[file.path], users[file.path] = (job_id, node_rank), file.share.uid
        self._files.look(users)
        return tuple(PlacedTable(*named[path], table) for path, table in sorted(self._files.found.items()))


class ManifestReader:
    """The manifests of jobs, each of the job's own user."""

    def __init__(self, patterns: Sequence[str], clock: Clock) -> None:
        self._listing = TextFiles(patterns, clock.monotonic)
        self._files: ChangedFiles[tuple[ManifestModel, ...]] = ChangedFiles(MAX_MANIFEST_BYTES, read_manifest)

    def look(self, job_of: JobOf) -> tuple[JobManifest, ...]:
        """The manifest of each job; of several of one job that which was written last."""
        newest_of: dict[str, FollowedFile] = {}
        for file in newest(self._listing.discover(), MAX_MANIFESTS):
            named = self._listing.job_id(file)
            job_id = "" if named is None else job_of(file.share.uid, named)
            if job_id:
                newest_of.setdefault(job_id, file)
        self._files.look({file.path: file.share.uid for file in newest_of.values()})
        found = {job_id: self._files.found.get(file.path) for job_id, file in sorted(newest_of.items())}
        return tuple(JobManifest(job_id, models) for job_id, models in found.items() if models)


class SiteReader:
    """All of them: perf.csv by name, tables and manifests by patterns of their paths."""

    def __init__(self, results: Sequence[str], tables: Sequence[str], manifests: Sequence[str], clock: Clock) -> None:
        self._results = ResultReader(results)
        self._tables = TableReader(tables, clock)
        self._manifests = ManifestReader(manifests, clock)

    def look(self, job_of: JobOf) -> SiteFacts:
        """Look once at all of them."""
        return SiteFacts(self._results.look(), self._tables.look(), self._manifests.look(job_of))


def newest(files: Iterable[FollowedFile], most: int) -> list[FollowedFile]:
    """So many files at most: one of each user after another, of a user those written last first."""
    of_user: Counter[int] = Counter()
    ranked = []
    for file in sorted(files, key=lambda file: (-file.written_ns, file.path)):
        ranked.append((of_user[file.share.uid], file))
        of_user[file.share.uid] += 1
    return [file for _, file in sorted(ranked, key=lambda each: each[0])[:most]]
