"""Reads the file in which PyTorch saves the exception that ended a rank. Blocking, except ``read_error``.

torchrun names a file for each rank in TORCHELASTIC_ERROR_FILE. A rank writes the file only if its entry point is
wrapped in ``torch.distributed.elastic.multiprocessing.errors.record`` (error_handler.py: message, extraInfo). A job's
user controls path and content, so the file is used only for the rank that named it, and only if it belongs to that
rank's user. The parser keeps only a category and the name of a well-known exception.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.helper.by_user import ByUser
from agent.sdk.files import in_turns
from agent.sdk.ranks import ProcessKey, RankView
from agent.sdk.system import ProcFS
from agent.system.inside import open_inside
from exporters.job_log.catalogue import Catalogue
from exporters.job_log.jobs import ERROR_FILE, LoggedJob
from exporters.job_log.matcher import events

MAX_BYTES = 256 * 1024  # A larger file is not read. PyTorch writes a message and a traceback, some kilobytes.
MAX_READS = 64  # Limit of files per call of ``new``
WAIT_SECONDS = 30.0  # A file that is missing or half written is tried again for this long after the exit was first seen
GRACE_SECONDS = 0.2  # ``new`` waits this long for all files together. A file system that hangs affects only its user.
EARLY_SECONDS = 2.0
"""A file last written more than this long before the rank's start is from an earlier run. The start is known to 1 s."""
INIT_PID = 1
PROGRAM_ERROR, ROOT = "program_error", "root"
OTHER = "exception"
"""The name for an exception that is not in KNOWN: its class name is text of the user."""
INTERRUPT = "KeyboardInterrupt"
_TORCH = ("OutOfMemoryError", "AcceleratorError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError")
KNOWN = {name: f"torch.{name}" for name in _TORCH} | {
    name: name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
}


class Raised(NamedTuple):
    """The exception that ended a rank. ``name``: one of KNOWN or OTHER; ``seconds``: when the file was written."""

    category: str
    role: str
    name: str
    weak: bool
    seconds: float


class _Message(msgspec.Struct):
    message: str


class _ErrorFile(msgspec.Struct):
    message: _Message | str


class ErrorFiles:
    """Reads the file of each exited rank. Used from one thread."""

    def __init__(self, proc: Path, catalogue: Catalogue) -> None:
        self._root = proc
        self._proc = ProcFS(proc)
        self._catalogue = catalogue
        self._readers: ByUser[RankView, Raised | None] = ByUser(self._read)
        self._until: dict[ProcessKey, float] = {}

    def new(self, jobs: Mapping[str, LoggedJob], now: float) -> Iterator[tuple[LoggedJob, RankView, Raised]]:
        """Yield the exceptions that exited ranks of ``jobs`` have saved since the last call. ``now``: monotonic."""
        exited = {
            view.process.key: (job, view)
            for job in jobs.values()
            for view in job.ranks
            if view.process.exited_at is not None
        }
        self._until = {key: until for key, until in self._until.items() if key in exited}
        for key, (_, view) in exited.items():
            self._until.setdefault(key, now + WAIT_SECONDS if _error_file(view) else now)
        due = [key for key, until in self._until.items() if until > now]
        keys = in_turns(due, lambda key: exited[key][1].process.facts.owner.key, MAX_READS)
        answers = self._readers.answers([exited[key][1] for key in keys], GRACE_SECONDS)
        for key, raised in zip(keys, answers, strict=True):
            until = self._until.pop(key)
            self._until[key] = until if raised is None else now  # the last key: other files come first next time
            if raised is not None:
                yield *exited[key], raised

    def _read(self, view: RankView) -> Raised | None:
        """Return the rank's exception; None if its file is missing, incomplete, too large, old or another user's."""
        facts = view.process.facts
        launcher = self._proc.status(facts.parent_pid)
        pid = facts.parent_pid if launcher is not None and launcher.uid == facts.uid else INIT_PID
        if facts.uid is None or (pid == INIT_PID and (facts.container or facts.pod)):
            return None  # only a process in the container gives access to its files
        try:
            with open_inside(f"{self._root}/{pid}/root", _error_file(view), facts.uid) as fd:
                status = os.fstat(fd)
                early = status.st_mtime < facts.start_seconds - EARLY_SECONDS
                if status.st_size > MAX_BYTES or early:
                    return None
                return read_error(os.read(fd, MAX_BYTES), self._catalogue, status.st_mtime)
        except (OSError, ValueError):  # ValueError: a NUL in the path
            return None


def _error_file(view: RankView) -> str:
    """Return the file that a rank's environment names; empty if none."""
    return (view.process.facts.environment or {}).get(ERROR_FILE, "")


def read_error(raw: bytes, catalogue: Catalogue, seconds: float) -> Raised | None:
    """Return the exception in an error file. ``seconds``: when the file was written.

    Return None if the content is incomplete or has another format, and if Ctrl-C ended the rank.
    """
    try:
        message = msgspec.json.decode(raw, type=_ErrorFile).message
    except (msgspec.DecodeError, RecursionError):
        return None
    line = (message if isinstance(message, str) else message.message).partition("\n")[0]
    name = KNOWN.get(line.partition(":")[0].rpartition(".")[2], OTHER)
    if name == INTERRUPT:
        return None
    event = next(
        (known for known in events(line.encode("utf-8", "replace") + b"\n", catalogue) if known.rule.role), None
    )
    if event is None:
        return Raised(PROGRAM_ERROR, ROOT, name, weak=True, seconds=seconds)
    return Raised(event.rule.category, event.rule.role, name, event.rule.weak, seconds)
