"""The checkpoint: one file, replaced atomically, that lets counters and ranks survive a restart of the agent.

The file contains the kernel's boot id and is ignored after a reboot: then pids and monotonic times have no meaning. The
file survives a killed agent, but not surely a loss of power: it is not synced to disk.
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
"""Limit of the file; the sum of the sections' limits is lower."""
MAX_SECTION_BYTES = 2 * 1024 * 1024
"""Default limit of a section."""
ENVELOPE_BYTES = 64 * 1024
"""Upper bound of the file's bytes that do not belong to a section."""
SAVE_INTERVAL_SECONDS = 5.0
MAX_COUNT = 1 << 62
MAX_SECONDS = float(1 << 40)
SavedCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A count in a section; a greater count means that the section is damaged. ``saved_sum`` stays within the limit."""
SavedSeconds = Annotated[float, msgspec.Meta(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""A time in a section, in seconds since the boot or the epoch; not NaN or infinite."""


def saved_sum(count: int, more: int = 1) -> int:
    """Return ``count`` plus ``more``, at most MAX_COUNT."""
    return min(count + more, MAX_COUNT)


class _Checkpoint(msgspec.Struct):
    """Content of the file. Each owner encodes its own section."""

    format: int
    boot_id: str
    sections: dict[Annotated[str, msgspec.Meta(max_length=128)], bytes]


class StateSection(Leased[None]):
    """One owner's section of the checkpoint. Called on the event loop.

    ``restored``: the owner's last publication in this boot, or None. ``publish`` replaces the publication, and the
    agent writes the file within seconds. ``durable``: the publication that is in the file, or None. ``refused``: number
    of publications larger than ``max_bytes``. The last publication stays after ``close``.
    """

    def __init__(self, name: str, restored: bytes | None, max_bytes: int = MAX_SECTION_BYTES) -> None:
        super().__init__(None)
        self.name = name
        self.max_bytes = max_bytes
        self._log = Logger("checkpoint")
        if restored is not None and len(restored) > max_bytes:
            self._log.warning("section over its limit, starting without it", section=name, bytes=len(restored))
            restored = None
        self.restored = restored
        self.published: bytes | None = restored
        self.durable: bytes | None = restored
        self.refused = 0
        self._too_large = False

    def restore(self, kind: type[T], log: Logger) -> T | None:
        """Return the decoded last publication; None without one, or if it cannot be decoded, which is logged."""
        if self.restored is None:
            return None
        try:
            return msgspec.msgpack.decode(self.restored, type=kind)
        except Exception as error:  # noqa: BLE001  # damage can raise any error, and must not prevent the start
            log.warning("checkpoint not readable, starting without it", section=self.name, error=error)
            return None

    def publish(self, section: bytes) -> None:
        """Publish ``section`` for the next start.

        A section over the limit is refused and the previous publication stays: it is older, but complete.
        """
        self.ensure_open()
        too_large = len(section) > self.max_bytes
        self.refused += too_large
        if too_large and not self._too_large:
            self._log.error(
                "section over its limit not saved, the previous one is kept", section=self.name, bytes=len(section)
            )
        self._too_large = too_large
        if not too_large and section != self.published:
            self.published = section


class Draft(NamedTuple):
    """The file's next content, and the owners' sections in it."""

    content: bytes
    sections: dict[str, bytes]


class StateFile:
    """The sections and their file; with ``path`` None nothing is saved, and ``directory`` is None."""

    def __init__(self, path: Path | None, boot_id: str, log: Logger) -> None:
        self._path = path
        self.directory = None if path is None else path.parent
        self.boot_id = boot_id
        self._log = log
        self._sections: dict[str, StateSection] = {}
        self._restored: dict[str, bytes] = {}
        self._write_errors = 0
        self._failed_by: int | None = None

    def load(self) -> None:
        """Read the file (blocking; before the loop runs); log and ignore an unusable file."""
        if self._path is None:
            return
        try:
            checkpoint = msgspec.msgpack.decode(read_own_file(self._path, MAX_BYTES), type=_Checkpoint)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warning("checkpoint not readable, starting without it", path=self._path, error=error.strerror)
        except Exception as error:  # noqa: BLE001  # damage can raise any error, and must not prevent the start
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
        """Return section ``name`` for a new owner, with the last publication of the previous owner."""
        before = self._sections.get(name)
        restored = self._restored.pop(name, None) if before is None else before.published
        section = StateSection(name, restored, max_bytes)
        if before is not None:
            section.durable, section.refused = before.durable, before.refused
            before.close()
        self._sections[name] = section
        return section

    @property
    def save_errors(self) -> int:
        """Return the number of failed saves plus the number of sections that were refused as too large."""
        return self._write_errors + sum(section.refused for section in self._sections.values())

    def changed(self) -> bool:
        """Return True if a publication is not saved yet."""
        sections = self._sections.values()
        return self._path is not None and any(section.published is not section.durable for section in sections)

    def encode(self) -> Draft:
        """Return the file's next content: publications, and restored sections without an owner as far as they fit."""
        owned = {s.name: s.published for s in self._sections.values() if s.published is not None}
        sections, room = dict(owned), MAX_BYTES - ENVELOPE_BYTES - sum(map(len, owned.values()))
        for name, section in list(self._restored.items()):
            if len(section) > room:
                self._log.warning("no room for a section whose owner does not run", section=name)
                del self._restored[name]
                continue
            sections[name] = section
            room -= len(section)
        return Draft(msgspec.msgpack.encode(_Checkpoint(FORMAT, self.boot_id, sections)), owned)

    def write(self, draft: Draft) -> bool:
        """Replace the file (blocking, in any thread); return False on failure.

        Only the first of consecutive equal errors is logged.
        """
        if self._path is None:
            return False
        if len(draft.content) > MAX_BYTES:  # ``load`` would refuse the file: the older file is better
            self._log.warning("checkpoint not written: too large", path=self._path, bytes=len(draft.content))
            return False
        try:
            write_own_file(self._path, draft.content, sync=False)
        except OSError as error:
            if error.errno != self._failed_by:
                text = "checkpoint not written; state.path must be writable for the agent"
                self._log.warning(text, path=self._path, error=error.strerror)
            self._failed_by = error.errno
            return False
        self._failed_by = None
        return True

    def note(self, draft: Draft, *, written: bool) -> None:
        """Mark the sections of a written ``draft`` as durable; count a failure if ``draft`` was not written."""
        if not written:
            self._write_errors += self._path is not None
            return
        for name, section in draft.sections.items():
            self._sections[name].durable = section


def write_own_file(path: Path, content: bytes, *, sync: bool) -> None:
    """Replace a file atomically, readable only by this user (blocking). Raises OSError.

    ``sync``: the file survives a loss of power.
    """
    scratch = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    scratch.unlink(missing_ok=True)  # left by a killed agent, or made by another user
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
    """Return the content of a file that only this user or root can write; raises OSError for another file.

    A FIFO or a device does not block the call.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_uid not in (os.geteuid(), 0):
            raise OSError(errno.EPERM, f"owned by uid {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, f"mode {stat.S_IMODE(status.st_mode):04o}: other users can write it")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    return raw
