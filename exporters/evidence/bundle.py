"""Writes a bundle and its summary, and evicts old bundles, with fair shares for users. Blocking; from one thread."""

import contextlib
import gzip
import io
import re
import tarfile
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.sdk.evidence import folder as bundle_files, summary as summaries
from agent.sdk.exporter import write_own_file

MAX_PART_BYTES = 4 * 1024 * 1024  # Limit per file; only the end of a longer file is kept
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_DRAFT = re.compile(r".+\.(tar\.gz|json)\.(new|part)|.+-\d{8}T\d{6}Z-.+\.json")
"""Matches the names of incomplete files (``write_own_file``) and of summaries."""
MOST_TIMES = 4
"""The node's limit in multiples of ``keep_bundles``. Up to it, a user's only bundle and bundles of open pages stay."""


class Held(NamedTuple):
    """One bundle: its job's user, and whether an alert of that job may be paging."""

    user: str
    has_open_page: bool


def evicted(held: Sequence[Held], keep: int) -> int | None:
    """Return the index of the bundle to evict, or None; ``held``: the oldest first, the new one last.

    Up to ``keep`` bundles, all stay. With more, the user with the most bundles loses the oldest bundle of a job without
    an open page; a user's only bundle stays. Above the node's limit, bundles of jobs with an open page are evicted,
    too. If each user has one bundle, the oldest of a job without an open page is evicted, else the new bundle.
    """
    if len(held) <= keep:
        return None
    counts = Counter(bundle.user for bundle in held)
    older = range(len(held) - 1)
    not_only = [number for number in older if counts[held[number].user] > 1]
    candidates = [number for number in not_only if not held[number].has_open_page]
    if not candidates:
        if len(held) <= min(MOST_TIMES * keep, bundle_files.MAX_LISTED):
            return None
        candidates = not_only or [number for number in older if not held[number].has_open_page]
    return max(candidates, key=lambda number: (counts[held[number].user], -number), default=len(held) - 1)


def bundle_name(job_id: str, taken_at: float, node: str) -> str:
    """Return a bundle's name without suffix; users choose job ids and sites choose node names, so both are cleaned."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken_at))
    return f"{_UNSAFE.sub('_', job_id)[:64]}-{when}-{_UNSAFE.sub('_', node)[:64]}"


def fitted(files: Mapping[str, bytes], most_bytes: int) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that fit, short files first (only the end of long files), and the names of the other files."""
    kept: dict[str, bytes] = {}
    left_out = []
    room = most_bytes
    for name, data in sorted(files.items(), key=lambda item: (len(item[1]), item[0])):
        cut = data[-MAX_PART_BYTES:]
        if len(cut) > room:
            left_out.append(name)
            continue
        kept[name] = cut
        room -= len(cut)
    return kept, sorted(left_out)


class FolderFullError(Exception):
    """Each kept bundle is its user's only bundle, and its job may have an open page."""


def write(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    summary: summaries.Summary,
    keep: int,
    open_jobs: Container[str] = frozenset(),
) -> str:
    """Write the bundle and its summary, both or neither, readable only by their owner; evict bundles (see ``evicted``).

    If the name exists, the new name gets a number: two job ids may differ only in characters that no file name can
    have. ``open_jobs``: jobs that may have an open page. Returns the name; raises OSError or FolderFullError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_drafts(folder)
    old = bundle_files.bundles(folder)
    numbered = (f"{name}.{number}" for number in range(2, len(old) + 3))
    name = name if name not in old else next(candidate for candidate in numbered if candidate not in old)
    held = [*(_held(folder, bundle, open_jobs) for bundle in old), Held(summary.user, has_open_page=True)]
    while (number := evicted(held, keep)) is not None:
        if number == len(old):
            raise FolderFullError(f"each of {len(old)} users has one bundle here, with an open page")
        _remove(folder, old.pop(number))
        del held[number]
    packed = _packed(files, summary)
    summary_text = msgspec.json.format(msgspec.json.encode(summary)) + b"\n"
    try:  # the bundle last, so that a visible bundle has its summary
        write_own_file(folder / f"{name}{bundle_files.SUMMARY_SUFFIX}", summary_text, sync=True)
        write_own_file(folder / f"{name}{bundle_files.SUFFIX}", packed, sync=True)
    except OSError:
        _remove(folder, name)
        _remove_drafts(folder)
        raise
    return name


def _held(folder: Path, name: str, open_jobs: Container[str]) -> Held:
    try:
        summary = bundle_files.read_summary(folder, name)
    except (OSError, ValueError):
        return Held("", has_open_page=False)
    return Held(summary.user, summary.job_id in open_jobs)


def _packed(files: Mapping[str, bytes], summary: summaries.Summary) -> bytes:
    packed = io.BytesIO()
    whole = {**files, "summary.json": msgspec.json.encode(summary)}
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, data in sorted(whole.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(summary.taken_at)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _remove(folder: Path, name: str) -> None:
    for suffix in (bundle_files.SUFFIX, bundle_files.SUMMARY_SUFFIX):
        with contextlib.suppress(OSError):
            (folder / f"{name}{suffix}").unlink()


def _remove_drafts(folder: Path) -> None:
    """Remove unfinished files and summaries without a bundle, such as those of a killed agent."""
    for path in [draft for draft in folder.iterdir() if _DRAFT.fullmatch(draft.name)]:
        with contextlib.suppress(OSError):
            if not path.with_name(f"{path.stem}{bundle_files.SUFFIX}").exists():
                path.unlink()
