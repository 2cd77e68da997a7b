"""The directory of bundles: what files are called, how root asks for a bundle, and reading the summaries. Blocking."""

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
"""Of a file that is given over HTTP; packed bundles have about one MiB, and 20 MiB before packing."""
MAX_LISTED = 1000
"""Bundles of a directory that are looked at, the newest."""
REQUEST_PREFIX = "take-"
MAX_REQUESTS = 8
"""In one look; the others wait."""
MAX_JOB_ID_BYTES = 150
"""In a request, whose name holds it in base 32: names of files have at most 255 bytes."""
_NAME = re.compile(r"[A-Za-z0-9._-]+-\d{8}T\d{6}Z-[A-Za-z0-9._-]+")
_REQUEST = re.compile(rf"{REQUEST_PREFIX}([0-9a-z]+)")
"""Never a bundle, whatever its job is called: these have a time and a suffix."""


def bundles(folder: Path) -> list[str]:
    """Return the names of the bundles, without suffix, the oldest first."""
    dated_names = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            name = path.name.removesuffix(SUFFIX)
            if path.name.endswith(SUFFIX) and _NAME.fullmatch(name):
                with contextlib.suppress(OSError):  # removed since
                    dated_names.append((path.stat().st_mtime, name))
    return [name for _, name in sorted(dated_names)[-MAX_LISTED:]]


def read_summary(folder: Path, name: str) -> Summary:
    """Return the summary of a bundle; raises OSError, or ValueError where it makes no sense."""
    return parsed_summary(folder / f"{name}{SUMMARY_SUFFIX}")


def parsed_summary(path: Path) -> Summary:
    """Return the summary in a file; raises OSError, or ValueError where it makes no sense."""
    try:
        return msgspec.json.decode(_content(path, MAX_SUMMARY_BYTES), type=Summary)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_file(folder: Path, name: str) -> bytes | None:
    """Return a bundle or its summary by the whole name of its file; None where there is none, or a larger one.

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
    """Return the bytes of a regular file; ValueError for anything else, which is not waited for, or beyond ``most``."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"larger than {most} bytes")
    return content


def summaries(folder: Path) -> Iterable[tuple[str, Summary]]:
    """Yield the summaries that can be read, by the bundle's name, the oldest first."""
    for name in bundles(folder):
        with contextlib.suppress(OSError, ValueError):
            yield name, read_summary(folder, name)


def ask_for(folder: Path, job_id: str) -> Path:
    """Leave a request for a bundle; returns its file, which the agent removes. Raises OSError or ValueError."""
    encoded = job_id.encode()
    if not 0 < len(encoded) <= MAX_JOB_ID_BYTES:
        raise ValueError(f"a job's id has 1 to {MAX_JOB_ID_BYTES} bytes")
    request = folder / f"{REQUEST_PREFIX}{base64.b32encode(encoded).decode().rstrip('=').lower()}"
    request.touch(mode=0o600)
    return request


def asked_for(folder: Path) -> list[str]:
    """Return the jobs for which a bundle is requested, and remove the requests.

    Only who may write to the directory can ask: it is the service's own.
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
