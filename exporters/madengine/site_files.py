"""Reads whole files that a site names, perf.csv and tables of results, again when one changes.

It blocks: for the exporter's own thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from agent.sdk.exporter import Clock
from agent.sdk.files import FilePlace, FollowedFile, TextFiles, read_changed
from exporters.madengine.results import (
    MAX_CSV_BYTES,
    MAX_RESULTS,
    PlacedTable,
    Results,
    ResultTable,
    node_of,
    read_perf_csv,
    read_table,
)

MAX_TABLES = 128
"""Read in one look: the newest, an equal number of each user."""
MAX_TABLE_BYTES = 1024 * 1024
"""Some 10,000 results."""
LOOK_BYTES = 8 * 1024 * 1024
"""Read in about one look; the other files follow in the next ones."""

T = TypeVar("T")


class SiteFacts(NamedTuple):
    """The results in a site's files."""

    results: Results
    tables: tuple[PlacedTable, ...]


class ChangedFiles(Generic[T]):
    """Contents by path. A file that is half written or too long keeps its last good content."""

    def __init__(self, max_bytes: int, read: Callable[[bytes], T | None]) -> None:
        self._max_bytes = max_bytes
        self._read = read
        self._places: dict[str, FilePlace] = {}
        self.contents: dict[str, T] = {}

    def look(self, paths: Mapping[str, int | None]) -> None:
        """Read these files and forget all others. By path: the user (uid) who must own the file, None for any."""
        for path in self._places.keys() - paths.keys():
            self._forget(path)
        room = LOOK_BYTES
        for path, uid in paths.items():
            if room <= 0:
                break
            try:
                changed = read_changed(path, self._max_bytes, self._places.get(path), uid)
            except OSError:
                self._forget(path)
                continue
            if changed is not None:
                self._places[path], raw = changed
                room -= len(raw)
                content = self._read(raw) if len(raw) <= self._max_bytes else None
                if content is not None:
                    self.contents[path] = content

    def _forget(self, path: str) -> None:
        self._places.pop(path, None)
        self.contents.pop(path, None)


class SiteReader:
    """perf.csv files by name (``results``), and tables in ``node_N`` of a job's directory by patterns of paths."""

    def __init__(self, results: Sequence[str], tables: Sequence[str], clock: Clock) -> None:
        self._paths = dict.fromkeys(results)
        self._results: ChangedFiles[Results] = ChangedFiles(MAX_CSV_BYTES, read_perf_csv)
        self._listing = TextFiles(tables, clock.monotonic)
        self._tables: ChangedFiles[ResultTable] = ChangedFiles(MAX_TABLE_BYTES, read_table)

    def look(self) -> SiteFacts:
        """Look once at all of them."""
        self._results.look(self._paths)
        results: Results = {}
        for path in self._paths:
            results |= self._results.contents.get(path, {})
        names: dict[str, tuple[str, int]] = {}
        users: dict[str, int | None] = {}
        for file in newest(self._listing.discover(), MAX_TABLES):
            job_id, node_rank = self._listing.job_id(file), node_of(file.path)
            if job_id is not None and node_rank is not None:
                names[file.path], users[file.path] = (job_id, node_rank), file.share.uid
        self._tables.look(users)
        tables = tuple(PlacedTable(*names[path], table) for path, table in sorted(self._tables.contents.items()))
        return SiteFacts(dict(list(results.items())[-MAX_RESULTS:]), tables)


def newest(files: Iterable[FollowedFile], limit: int) -> list[FollowedFile]:
    """Return at most ``limit`` files: the users in turn, each user's newest files first."""
    of_user: Counter[int] = Counter()
    ranked = []
    for file in sorted(files, key=lambda file: (-file.written_ns, file.path)):
        ranked.append((of_user[file.share.uid], file))
        of_user[file.share.uid] += 1
    return [file for _, file in sorted(ranked, key=lambda one: one[0])[:limit]]
