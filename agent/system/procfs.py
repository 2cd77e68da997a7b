"""What /proc says of processes; blocking reads, for the thread of their caller.

Every field is the kernel's (proc(5)) except names, command lines and environments, which belong to the job's user and
are bounded and decoded leniently. A file that vanished, or that we may not read, is None: callers decide.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.core.identity import ProcessKey

MAX_ENVIRONMENT_BYTES = 256 * 1024
MAX_TITLE_BYTES = 256
MAX_MAPS_BYTES = 8 * 1024 * 1024
MAX_THREADS_READ = 4096
MAX_FILES_READ = 4096
_SMALL_FILE_BYTES = 16 * 1024
_KERNEL_THREAD_FLAG = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_EXITING_FLAG = 0x00000004  # PF_EXITING, set before anything is torn down (kernel/exit.c)
_PIECE_BYTES = 64 * 1024
_MAX_STAT_BYTES = 8 * 1024 * 1024
_SIGKILL_BIT = 1 << 8
_BOOT_TIME = re.compile(rb"^btime (\d{1,11})$", re.MULTILINE)
_MAX_NUMBER = 1 << 62
_MAX_TICKS = 1 << 46
"""Of a start time: 20,000 years of a hundredth of a second; more is none."""


class Stat(msgspec.Struct, frozen=True, gc=False):
    """Fields of /proc/PID/stat that we use. ``exit_code`` is in waitpid form, 0 where we lack ptrace rights.

    ``exiting``: the main thread is being torn down; its descriptors may be gone long before it is a zombie.
    """

    pid: int
    comm: str
    state: str
    parent_pid: int
    kernel_thread: bool
    threads: int
    start_ticks: int
    exit_code: int
    exiting: bool = False
    session: int = 0

    @property
    def key(self) -> ProcessKey:
        """The identity that survives reuse of the pid."""
        return ProcessKey(self.pid, self.start_ticks)

    @property
    def over(self) -> bool:
        """True for a zombie without other threads: it only waits for its parent."""
        return self.state in "ZX" and self.threads <= 1


class Status(msgspec.Struct, frozen=True, gc=False):
    """Fields of /proc/PID/status. ``namespace_pids`` runs from our pid namespace inwards.

    ``uid``: the real one; ``root``: all four are 0.
    """

    uid: int
    namespace_pids: tuple[int, ...]
    kill_pending: bool
    context_switches: int
    root: bool = False


class OpenFile(msgspec.Struct, frozen=True, gc=False):
    """One descriptor of a process: its number, what the link says, and the file's identity."""

    fd: int
    target: str
    device: int
    inode: int


def parse_stat(text: str) -> Stat | None:
    """Parse /proc/PID/stat; None when it is not one. The name stands in brackets and may hold anything."""
    try:
        pid, rest = text.split(" ", 1)
        name, tail = rest[1:].rsplit(") ", 1)
        fields = tail.split()
        found = Stat(
            pid=int(pid),
            comm=name,
            state=fields[0],
            parent_pid=int(fields[1]),
            kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD_FLAG),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            exit_code=int(fields[49]),
            exiting=bool(int(fields[6]) & _EXITING_FLAG),
            session=int(fields[3]),
        )
    except (ValueError, IndexError):
        return None
    numbers = (found.pid, found.parent_pid, found.threads, found.exit_code)
    is_one = min(numbers) >= 0 and max(numbers) <= _MAX_NUMBER and 0 <= found.start_ticks <= _MAX_TICKS
    return found if is_one else None


def parse_status(text: str) -> Status | None:
    """Parse /proc/PID/status (or a thread's); None when it is not one."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
        found = Status(
            uid=int(fields["Uid"].split()[0]),
            namespace_pids=tuple(int(pid) for pid in fields.get("NSpid", fields["Pid"]).split()),
            kill_pending=bool(pending & _SIGKILL_BIT),
            context_switches=switches,
            root=fields["Uid"].split() == ["0"] * 4,
        )
    except (KeyError, ValueError, IndexError):
        return None
    numbers = (found.uid, *found.namespace_pids, found.context_switches)
    is_one = found.namespace_pids and min(numbers) >= 0 and max(numbers) <= _MAX_NUMBER
    return found if is_one else None


class ProcFS:
    """Reads processes under ``root`` (/proc, or a recorded tree)."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def pids(self) -> list[int]:
        """Every process we can see."""
        return [int(name) for name in os.listdir(self._root) if name.isascii() and name.isdigit()]

    def stat(self, pid: int) -> Stat | None:
        """The process' stat line, or None when it is gone."""
        text = self._text(f"{pid}/stat")
        found = None if text is None else parse_stat(text)
        return found if found is not None and found.pid == pid else None

    def status(self, pid: int) -> Status | None:
        """The process' status, or None when it is gone."""
        text = self._text(f"{pid}/status")
        return None if text is None else parse_status(text)

    def thread_ids(self, pid: int) -> list[int]:
        """The process' threads, bounded."""
        return [int(tid) for tid in self._list(f"{pid}/task")[:MAX_THREADS_READ]]

    def thread_name(self, pid: int, tid: int) -> str:
        """One thread's name, or nothing when it is gone."""
        return (self._text(f"{pid}/task/{tid}/comm") or "").rstrip("\n")

    def thread_stat(self, pid: int, tid: int) -> Stat | None:
        """One thread's stat line."""
        text = self._text(f"{pid}/task/{tid}/stat")
        return None if text is None else parse_stat(text)

    def thread_status(self, pid: int, tid: int) -> Status | None:
        """One thread's status."""
        text = self._text(f"{pid}/task/{tid}/status")
        return None if text is None else parse_status(text)

    def environment(self, pid: int) -> dict[str, str] | None:
        """The environment the process was started with; None when it may not be read or is gone."""
        try:
            raw = self._bytes(f"{pid}/environ", MAX_ENVIRONMENT_BYTES)
        except OSError:
            return None
        pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
        return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}

    def title(self, pid: int) -> str:
        """The command line, which the process may have changed, its words apart by blanks; empty when it is gone.

        Cut to MAX_TITLE_BYTES.
        """
        try:
            raw = self._bytes(f"{pid}/cmdline", MAX_TITLE_BYTES)
        except OSError:
            return ""
        return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")

    def namespace(self, pid: int, kind: str) -> int:
        """Inode of the process' namespace of ``kind`` (pid, uts, net, mnt); 0 when it may not be read."""
        try:
            return int(os.readlink(f"{self._root}/{pid}/ns/{kind}").partition("[")[2].rstrip("]") or 0)
        except (OSError, ValueError):
            return 0

    def directory(self, pid: int) -> str:
        """The directory that the process works in; empty when it may not be read. Waits for no file system.

        What of its name is not UTF-8 is replaced: names go into the checkpoint.
        """
        try:
            return os.readlink(os.fsencode(f"{self._root}/{pid}/cwd")).decode("utf-8", "replace")
        except OSError:
            return ""

    def cgroup(self, pid: int) -> dict[str, str]:
        """The process' cgroup path by controller list ('' is the unified hierarchy)."""
        found: dict[str, str] = {}
        for line in (self._text(f"{pid}/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            found[controllers] = path
        return found

    def maps_library(self, pid: int, names: re.Pattern[bytes]) -> bool | None:
        """True when a mapped file's path matches ``names``; None when the maps may not be read."""
        try:
            return names.search(self._bytes(f"{pid}/maps", MAX_MAPS_BYTES)) is not None
        except OSError:
            return None

    def open_files(self, pid: int, identify: Callable[[str], bool]) -> list[OpenFile] | None:
        """The process' descriptors that are files with a path; None when they may not be read.

        Only paths for which ``identify`` is true are asked for device and inode (else 0): a stat can wait for a file
        system that hangs.
        """
        folder = f"{self._root}/{pid}/fd"
        try:
            numbers = os.listdir(folder)[:MAX_FILES_READ]
        except OSError:
            return None
        found = []
        for number in numbers:
            try:
                target = os.readlink(f"{folder}/{number}")
                if not target.startswith("/"):
                    continue
                info = os.stat(f"{folder}/{number}") if identify(target) else None
            except OSError:
                continue
            device, inode = (info.st_dev, info.st_ino) if info else (0, 0)
            found.append(OpenFile(int(number), target, device, inode))
        return found

    def holds(self, pid: int, file: OpenFile) -> bool | None:
        """True when the process still holds ``file`` under that descriptor; None when it may not be read.

        The link alone is asked while it says the same: unlike a stat it never waits for a file system that hangs.
        """
        path = f"{self._root}/{pid}/fd/{file.fd}"
        try:
            if os.readlink(path) == file.target:
                return True
            info = os.stat(path)  # renamed or deleted, or another file by now
        except FileNotFoundError:
            return False
        except OSError:
            return None
        return (info.st_dev, info.st_ino) == (file.device, file.inode)

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return (self._text("sys/kernel/random/boot_id") or "unknown").strip()

    def boot_seconds(self) -> float:
        """When this boot began, in seconds since the epoch (btime of /proc/stat); 0 where that is not told."""
        found = _BOOT_TIME.search(self._bytes("stat", _MAX_STAT_BYTES))
        return float(found[1]) if found else 0.0

    def _list(self, path: str) -> list[str]:
        try:
            return os.listdir(f"{self._root}/{path}")
        except OSError:
            return []

    def _text(self, path: str) -> str | None:
        """A small file in one read: the kernel makes these whole."""
        try:
            fd = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(fd, _SMALL_FILE_BYTES).decode("utf-8", "replace")
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.ENOTDIR):
                return None
            raise

    def _bytes(self, path: str, limit: int) -> bytes:
        fd = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            left = limit
            while left > 0 and (piece := os.read(fd, min(left, _PIECE_BYTES))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)
