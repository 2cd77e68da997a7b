"""The checkpoint: one file, replaced whole, that lets counters and ranks survive the agent.

It is tagged with the kernel's boot id and ignored after a reboot: pids, inodes and CLOCK_MONOTONIC mean nothing then.
For the same reason it is not synced to disk: the page cache outlives a killed agent, and nothing outlives a boot.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from agent.core.leased import Leased
from agent.core.log import Logger

T = TypeVar("T")

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
"""Of the file; the budgets of all sections together stay below it."""
MAX_SECTION_BYTES = 2 * 1024 * 1024
"""A section's budget, unless its owner is given another."""
ENVELOPE_BYTES = 64 * 1024
"""More than all that stands around the sections."""
SAVE_INTERVAL_SECONDS = 5.0
MAX_COUNT = 1 << 62
MAX_SECONDS = float(1 << 40)
SavedCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A count in a section; a greater one is damage. ``saved_sum`` adds to it."""
SavedSeconds = Annotated[float, msgspec.Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""A time in a section, monotonic or since the epoch: it is a number, and finite."""


def saved_sum(count: int, more: int = 1) -> int:
    """A SavedCount and what is added to it, no greater than one may be."""
    return min(count + more, MAX_COUNT)


class _Checkpoint(msgspec.Struct):
    """What the file holds; each section's bytes are its owner's own encoding."""

    format: int
    boot_id: str
    sections: dict[Annotated[str, msgspec.Meta(max_length=128)], bytes]


class StateSection(Leased[None]):
    """One owner's part of the checkpoint.

    ``restored``: what this owner published last in this boot, or None. ``publish`` replaces it; the file follows within
    seconds. Called on the event loop. ``durable``: what was published and a killed agent would find again, or None.
    ``refused`` counts the publications that were larger than ``max_bytes``. After ``close`` what was published last
    stays.
    """

    def __init__(self, name: str, restored: bytes | None, max_bytes: int = MAX_SECTION_BYTES) -> None:
        super().__init__(None)
        self.name = name
        self.max_bytes = max_bytes
        self._log = Logger("checkpoint")
        if restored is not None and len(restored) > max_bytes:
            self._log.warning("section over its budget, starting without it", section=name, bytes=len(restored))
            restored = None
        self.restored = restored
        self.published: bytes | None = restored
        self.durable: bytes | None = restored
        self.changes = 0
        self.refused = 0
        self._too_large = False

    def restore(self, kind: type[T], log: Logger) -> T | None:
        """What this owner published last, decoded; None where there is nothing or, with a word in the log, no sense."""
        if self.restored is None:
            return None
        try:
            return msgspec.msgpack.decode(self.restored, type=kind)
        except Exception as error:  # noqa: BLE001  # whatever damage leads to: it must not come again at each start
            log.warning("checkpoint not readable, starting without it", section=self.name, error=error)
            return None

    def publish(self, section: bytes) -> None:
        """Keep ``section`` as what a restart must find.

        One over the budget is refused, and what was published before stays: it is older, and whole.
        """
        self.ensure_open()
        too_large = len(section) > self.max_bytes
        self.refused += too_large
        if too_large and not self._too_large:
            self._log.error(
                "section over its budget not saved, the one before is kept", section=self.name, bytes=len(section)
            )
        self._too_large = too_large
        if not too_large and section != self.published:
            self.published = section
            self.changes += 1


class Draft(NamedTuple):
    """The file's next content: the sections in it that have owners, and how many changes they hold."""

    content: bytes
    sections: dict[str, bytes]
    changes: int


class StateFile:
    """The sections and the file they are kept in; ``path`` None keeps nothing."""

    def __init__(self, path: Path | None, boot_id: str, log: Logger) -> None:
        self._path = path
        self.boot_id = boot_id
        self._log = log
        self._sections: dict[str, StateSection] = {}
        self._restored: dict[str, bytes] = {}
        self._saved_changes = 0
        self._write_errors = 0

    def load(self) -> None:
        """Read the file (blocking; before the loop runs). What does not fit is logged and set aside."""
        if self._path is None:
            return
        try:
            checkpoint = msgspec.msgpack.decode(read_own_file(self._path, MAX_BYTES), type=_Checkpoint)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("checkpoint not readable, starting without it", path=self._path, error=error.strerror)
        except Exception as error:  # noqa: BLE001  # whatever damage leads to: it must not come again at each start
            self._log.warning("checkpoint damaged, starting without it", path=self._path, error=error)
        else:
            self._take(checkpoint)

    def _take(self, checkpoint: _Checkpoint) -> None:
        path = self._path
        if checkpoint.format != FORMAT:
            self._log.warning("checkpoint of another format, starting without it", path=path, format=checkpoint.format)
        elif checkpoint.boot_id != self.boot_id:
            self._log.info("checkpoint is from before the last boot, starting without it", path=path)
        else:
            self._restored = checkpoint.sections

    def section(self, name: str, max_bytes: int = MAX_SECTION_BYTES) -> StateSection:
        """Return the section called ``name`` for its next owner, who finds what the one before published last."""
        before = self._sections.get(name)
        restored = self._restored.pop(name, None) if before is None else before.published
        section = StateSection(name, restored, max_bytes)
        if before is not None:
            section.durable, section.changes, section.refused = before.durable, before.changes, before.refused
            before.close()
        self._sections[name] = section
        return section

    @property
    def directory(self) -> Path | None:
        """Where the file lies; None where there is none."""
        return None if self._path is None else self._path.parent

    @property
    def save_errors(self) -> int:
        """Saves that failed, and sections that were too large to be saved."""
        return self._write_errors + sum(section.refused for section in self._sections.values())

    def changed(self) -> bool:
        """Return True when something was published that is not saved."""
        return self._path is not None and self._changes() != self._saved_changes

    def encode(self) -> Draft:
        """Return the file's next content: what owners published, and what was restored and not yet claimed.

        The latter only as far as there is room.
        """
        owned = {s.name: s.published for s in self._sections.values() if s.published is not None}
        sections, room = dict(owned), MAX_BYTES - ENVELOPE_BYTES - sum(map(len, owned.values()))
        for name, section in list(self._restored.items()):
            if len(section) > room:
                self._log.warning("no room for the section of an owner that does not run", section=name)
                del self._restored[name]
                continue
            sections[name] = section
            room -= len(section)
        return Draft(msgspec.msgpack.encode(_Checkpoint(FORMAT, self.boot_id, sections)), owned, self._changes())

    def write(self, draft: Draft) -> bool:
        """Replace the file (blocking); False, and logged, when that fails. In any thread: nothing else is touched."""
        if self._path is None:
            return False
        if len(draft.content) > MAX_BYTES:  # it would not be read again: better an older one
            self._log.warning("checkpoint not written: too large", path=self._path, bytes=len(draft.content))
            return False
        try:
            write_own_file(self._path, draft.content, sync=False)
        except OSError as error:
            self._log.warning("checkpoint not written", path=self._path, error=error.strerror)
            return False
        return True

    def note(self, draft: Draft, *, written: bool) -> None:
        """Take in whether ``draft`` was written: its sections are durable then.

        A failure is counted; what it was to save still counts as changed.
        """
        if not written:
            self._write_errors += self._path is not None
            return
        self._saved_changes = draft.changes
        for name, section in draft.sections.items():
            self._sections[name].durable = section

    def _changes(self) -> int:
        return sum(section.changes for section in self._sections.values())


def write_own_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Replace a file whole, readable by this user alone (blocking). Raises OSError.

    ``sync``: it survives a loss of power.
    """
    scratch = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    scratch.unlink(missing_ok=True)  # of an agent that was killed, or what another put there
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    scratch.replace(path)
    if sync:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read_own_file(path: Path, max_bytes: int) -> bytes:
    """Read what only this user or root can have written; OSError for anything else, without waiting for it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise OSError(errno.EPERM, f"owned by uid {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, f"mode {stat.S_IMODE(status.st_mode):04o}: others may write it")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    return raw
