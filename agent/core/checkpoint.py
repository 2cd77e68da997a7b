"""The checkpoint: one file, replaced whole, that lets counters and ranks survive the agent.

It is tagged with the kernel's boot id and ignored after a reboot: pids, inodes and CLOCK_MONOTONIC mean nothing then.
For the same reason it is not synced to disk: the page cache outlives a killed agent, and nothing outlives a boot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from agent.core.log import Logger

T = TypeVar("T")

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
SAVE_INTERVAL_SECONDS = 5.0


class _Checkpoint(msgspec.Struct):
    """What the file holds; each section's bytes are its owner's own encoding."""

    format: int
    boot_id: str
    sections: dict[Annotated[str, msgspec.Meta(max_length=128)], bytes]


class StateSection:
    """One owner's part of the checkpoint.

    ``restored``: what this owner published last in this boot, or None. ``publish`` replaces it; the file follows within
    seconds. Called on the event loop. ``durable``: what was published and a killed agent would find again, or None.
    After ``close`` nothing more is taken: a late update may end after its owner.
    """

    def __init__(self, name: str, restored: bytes | None) -> None:
        self.name = name
        self.restored = restored
        self.published: bytes | None = restored
        self.durable: bytes | None = restored
        self.changes = 0
        self._closed = False

    def restore(self, kind: type[T], log: Logger) -> T | None:
        """What this owner published last, decoded; None where there is nothing or, with a word in the log, no sense."""
        if self.restored is None:
            return None
        try:
            return msgspec.msgpack.decode(self.restored, type=kind)
        except ValueError as error:  # msgspec's are ValueErrors
            log.warning("checkpoint not readable, starting without it", section=self.name, error=error)
            return None

    def publish(self, section: bytes) -> None:
        """Keep ``section`` as what a restart must find."""
        if not self._closed and section != self.published:
            self.published = section
            self.changes += 1

    def close(self) -> None:
        """Keep what was published last."""
        self._closed = True


class StateFile:
    """The sections and the file they are kept in; ``path`` None keeps nothing."""

    def __init__(self, path: Path | None, boot_id: str, log: Logger) -> None:
        self._path = path
        self._boot_id = boot_id
        self._log = log
        self._sections: dict[str, StateSection] = {}
        self._restored: dict[str, bytes] = {}
        self._saved_changes = 0
        self._encoded: dict[str, bytes] = {}
        self.last_saved_seconds: float | None = None
        self.save_errors = 0

    def load(self) -> None:
        """Read the file (blocking; before the loop runs). What does not fit is logged and left aside."""
        if self._path is None:
            return
        try:
            raw = _read_bounded(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("checkpoint not readable, starting without it", path=self._path, error=error.strerror)
            return
        try:
            found = msgspec.msgpack.decode(raw, type=_Checkpoint)
        except ValueError as error:
            self._log.warning("checkpoint damaged, starting without it", path=self._path, error=error)
            return
        if found.format != FORMAT:
            self._log.warning("checkpoint of another format, starting without it", path=self._path, format=found.format)
            return
        if found.boot_id != self._boot_id:
            self._log.info("checkpoint is from before the last boot, starting without it", path=self._path)
            return
        self._restored = found.sections

    def section(self, name: str) -> StateSection:
        """Return the section called ``name`` for its next owner, who finds what the one before published last."""
        before = self._sections.get(name)
        section = StateSection(name, self._restored.pop(name, None) if before is None else before.published)
        if before is not None:
            section.durable, section.changes = before.durable, before.changes
            before.close()
        self._sections[name] = section
        return section

    @property
    def kept(self) -> bool:
        """False when there is no file, and whatever is published is kept in memory alone."""
        return self._path is not None

    def changed(self) -> bool:
        """True when something was published since the last save."""
        return self._path is not None and sum(s.changes for s in self._sections.values()) != self._saved_changes

    def encode(self) -> bytes:
        """Return the file's next content: what owners published, and what was restored and not yet claimed."""
        self._saved_changes = sum(section.changes for section in self._sections.values())
        sections = dict(self._restored)
        self._encoded = {s.name: s.published for s in self._sections.values() if s.published is not None}
        sections.update(self._encoded)
        return msgspec.msgpack.encode(_Checkpoint(FORMAT, self._boot_id, sections))

    def write(self, content: bytes, now_seconds: float) -> None:
        """Replace the file with ``content``, the last encoded (blocking).

        Errors are counted and logged; the agent goes on without.
        """
        if self._path is None:
            return
        if len(content) > MAX_BYTES:  # it would not be read again: better an older one
            self.save_errors += 1
            self._log.warning("checkpoint not written: too large", path=self._path, bytes=len(content))
            return
        scratch = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
            scratch.replace(self._path)
        except OSError as error:
            self.save_errors += 1
            self._log.warning("checkpoint not written", path=self._path, error=error.strerror)
        else:
            self.last_saved_seconds = now_seconds
            for name, section in self._encoded.items():
                self._sections[name].durable = section


def _read_bounded(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise OSError(27, f"larger than {MAX_BYTES} bytes")
    return raw
