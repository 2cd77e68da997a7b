"""The directory of bundles: names of files, root's requests for bundles, and reading of summaries. Blocking."""

import base64
import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent import __version__
from agent.evidence.summary import Summary

VERSION = __version__

DEFAULT_PATH = "/var/lib/rankwatch/evidence"
SUFFIX, SUMMARY_SUFFIX = ".tar.gz", ".json"
MAX_SUMMARY_BYTES = 8 * 1024 * 1024
MAX_SERVED_BYTES = 16 * 1024 * 1024
"""Limit of a file served over HTTP; packed bundles have about 1 MiB, unpacked up to 20 MiB."""
MAX_LISTED = 1000
"""Limit of listed bundles of a directory: the newest bundles."""
REQUEST_PREFIX = "take-"
MAX_REQUESTS = 8
"""Limit of requests handled in one call; further requests wait."""
MAX_JOB_ID_BYTES = 150
"""Limit of a job id in a request. A request's name has the id in base 32, and file names have at most 255 bytes."""
_NAME = re.compile(r"[A-Za-z0-9._-]+-\d{8}T\d{6}Z-[A-Za-z0-9._-]+")
_REQUEST = re.compile(rf"{REQUEST_PREFIX}([0-9a-z]+)")
"""Matches only names of requests: a bundle's name always has a time and a suffix."""


def bundles(folder: Path) -> list[str]:
    """Return the names of the bundles without suffix, oldest first."""
    dated_names = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            name = path.name.removesuffix(SUFFIX)
            if path.name.endswith(SUFFIX) and _NAME.fullmatch(name):
                with contextlib.suppress(OSError):  # removed since
                    dated_names.append((path.stat().st_mtime, name))
    return [name for _, name in sorted(dated_names)[-MAX_LISTED:]]


def read_summary(folder: Path, name: str) -> Summary:
    """Return the summary of a bundle; raises OSError, or ValueError if it is damaged."""
    return parsed_summary(folder / f"{name}{SUMMARY_SUFFIX}")


def parsed_summary(path: Path) -> Summary:
    """Return the summary in a file; raises OSError, or ValueError if it is damaged."""
    try:
        return msgspec.json.decode(_content(path, MAX_SUMMARY_BYTES), type=Summary)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_file(folder: Path, name: str) -> bytes | None:
    """Return the content of a bundle or summary by its file's name; None if it is missing or too large.

    Raises OSError.
    """
    suffix = next((ending for ending in (SUFFIX, SUMMARY_SUFFIX) if name.endswith(ending)), "")
    if not suffix or not _NAME.fullmatch(name.removesuffix(suffix)):
        return None
    try:
        return _content(folder / name, MAX_SERVED_BYTES)
    except (FileNotFoundError, ValueError):
        return None


def _content(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file, up to ``most``; raises ValueError for any other file, without blocking."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"larger than {most} bytes")
    return content


def summaries(folder: Path) -> Iterable[tuple[str, Summary]]:
    """Yield (bundle's name, summary) for each readable summary, oldest first."""
    for name in bundles(folder):
        with contextlib.suppress(OSError, ValueError):
            yield name, read_summary(folder, name)


def request_bundle(folder: Path, job_id: str) -> Path:
    """Write a request for a bundle and return its file, which the agent removes. Raises OSError or ValueError."""
    encoded = job_id.encode()
    if not 0 < len(encoded) <= MAX_JOB_ID_BYTES:
        raise ValueError(f"a job's id has 1 to {MAX_JOB_ID_BYTES} bytes")
    request = folder / f"{REQUEST_PREFIX}{base64.b32encode(encoded).decode().rstrip('=').lower()}"
    request.touch(mode=0o600)
    return request


def take_requests(folder: Path) -> list[str]:
    """Return the jobs with a request for a bundle, and remove the requests.

    Only users who may write to the directory (root and the service's user) can request a bundle.
    """
    try:
        names = sorted(path.name for path in folder.glob(f"{REQUEST_PREFIX}*"))
    except OSError:
        return []
    job_ids = []
    for request in list(filter(None, map(_REQUEST.fullmatch, names)))[:MAX_REQUESTS]:
        with contextlib.suppress(OSError, ValueError):
            (folder / request[0]).unlink()
            padding = "=" * (-len(request[1]) % 8)
            job_ids.append(base64.b32decode(request[1] + padding, casefold=True).decode())
    return job_ids
