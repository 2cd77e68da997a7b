"""Save which ranks run, in a file that survives a loss of power: peers on other nodes may wait for these ranks.

The checkpoint is for one boot and is not synced to disk. This file is written and synced when ranks start or exit.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from agent.core.checkpoint import read_own_file, write_own_file
from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.ranks.liveness.job_liveness import RanBefore

NAME = "ranks-of-this-boot"
MAX_FILE_BYTES = 1024 * 1024
WRITE_SECONDS = 3600.0
"""An unchanged file is written again after this time, so that its age shows how long ago the ranks ran."""
MAX_AGE_SECONDS = 86_400.0
"""An older file is ignored: no job still waits for ranks of that time."""


class _File(msgspec.Struct):
    boot_id: str
    seconds: float
    jobs: dict[str, RanBefore]


class BootFile:
    """Reads the ranks of the previous boot, and saves the ranks of this boot; does nothing if ``directory`` is None."""

    def __init__(self, directory: Path | None, boot_id: str, thread: OwnThread) -> None:
        self._path = None if directory is None else directory / NAME
        self._boot_id = boot_id
        self._thread = thread
        self._log = Logger("checkpoint")
        self._saved: Mapping[str, RanBefore] | None = None
        self._saved_seconds = 0.0
        self._failed_by: int | None = None
        self._writing: asyncio.Task[None] | None = None

    def load(self, now_seconds: float) -> dict[str, RanBefore]:
        """Return the jobs whose ranks ran at the end of the previous boot (blocking; before the loop runs)."""
        if self._path is None:
            return {}
        try:
            file = msgspec.json.decode(read_own_file(self._path, MAX_FILE_BYTES), type=_File)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._log.warning("the ranks of the previous boot are unknown", path=self._path, error=error)
            return {}
        is_of_another_boot = file.boot_id != self._boot_id
        is_recent = 0 <= now_seconds - file.seconds <= MAX_AGE_SECONDS
        return file.jobs if is_of_another_boot and is_recent else {}

    def keep(self, jobs: Mapping[str, RanBefore], now_seconds: float) -> None:
        """Write the jobs to the file if they changed; called on the event loop at each tick."""
        is_fresh = jobs == self._saved and 0 <= now_seconds - self._saved_seconds < WRITE_SECONDS
        if self._path is None or is_fresh or (self._writing is not None and not self._writing.done()):
            return
        self._saved_seconds = now_seconds
        content = msgspec.json.encode(_File(self._boot_id, now_seconds, dict(jobs)))
        self._writing = asyncio.get_running_loop().create_task(self._write(self._path, content, jobs))

    async def _write(self, path: Path, content: bytes, jobs: Mapping[str, RanBefore]) -> None:
        try:
            await self._thread.call(partial(write_own_file, path, content, sync=True))
        except OSError as error:
            self._saved = None  # the next tick tries again
            if error.errno != self._failed_by:
                text = "the ranks of this boot are not saved; the directory of state.path must be writable"
                self._log.warning(text, path=path, error=error.strerror)
            self._failed_by = error.errno
        else:
            self._saved, self._failed_by = jobs, None
