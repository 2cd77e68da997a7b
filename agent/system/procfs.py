"""Read processes from /proc. All calls block: make them in the exporter's own thread.

The kernel writes all fields (proc(5)) except names, command lines and environments. A job's user controls these, so
they have limits, and invalid bytes in them are replaced. For a missing or unreadable file the result is None.
"""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.system.process_lines import Stat, Status, parse_schedstat, parse_stat, parse_status

MAX_ENVIRONMENT_BYTES = 256 * 1024
MAX_TITLE_BYTES = 256
MAX_ARGUMENTS_BYTES = 8 * 1024
MAX_MAPS_BYTES = 8 * 1024 * 1024
MAX_THREADS_READ = 4096
MAX_FILES_READ = 4096
_SMALL_FILE_BYTES = 16 * 1024
_PIECE_BYTES = 64 * 1024
_MAX_STAT_BYTES = 8 * 1024 * 1024
MAX_FRAMES = 32  # Limit of stack frames; the stack of a system call that waits for a device has fewer
MAX_MOUNTS_BYTES = 1024 * 1024
# System calls whose first argument is a file descriptor: the kinds of read and write, fsync, fstat, getdents, close.
_FILE_CALLS = frozenset(
    {
        "x86_64": (0, 1, 3, 5, 17, 18, 19, 20, 74, 75, 77, 217, 285, 295, 296, 306, 327, 328),
        "aarch64": (46, 47, 57, 61, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 267, 286, 287),
    }.get(os.uname().machine, ())
)
_CALL = re.compile(r"(\d{1,4}) 0x([0-9a-f]{1,7}) ")
_MOUNT_ID = re.compile(r"^mnt_id:\t(\d{1,10})$", re.MULTILINE)
_MOUNT = re.compile(rb"^(\d{1,10}) [^\n]*? - ([^ \n]{1,64}) ", re.MULTILINE)
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")
_FRAME = re.compile(r"^\[<[0-9a-f]{1,16}>\] ([A-Za-z_][A-Za-z0-9_.]{0,127})\+", re.MULTILINE)
_FLAGS = re.compile(r"^flags:\t([0-7]{1,12})$", re.MULTILINE)
_GROUP = re.compile(r"^\d+:([^:\n]*):(.*)$", re.MULTILINE)  # users can name groups with all other separators
_BOOT_TIME = re.compile(rb"^btime (\d{1,11})$", re.MULTILINE)


class OpenFile(msgspec.Struct, frozen=True, gc=False):
    """A descriptor of a process: number, target of its link, and identity of the file."""

    fd: int
    target: str
    device: int
    inode: int


class ProcFS:
    """Reads processes under ``root`` (/proc, or a recorded tree)."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def pids(self) -> list[int]:
        """Return the pids of all visible processes."""
        return [int(name) for name in os.listdir(self._root) if name.isascii() and name.isdigit()]

    def stat(self, pid: int) -> Stat | None:
        """Return the process' stat; None if it is gone."""
        text = self._text(f"{pid}/stat")
        stat = None if text is None else parse_stat(text)
        return stat if stat is not None and stat.pid == pid else None

    def status(self, pid: int) -> Status | None:
        """Return the process' status; None if it is gone."""
        text = self._text(f"{pid}/status")
        return None if text is None else parse_status(text)

    def is_in_exec(self, pid: int) -> bool:
        """Return True while the process is in an execve, which first waits for file systems to close its old files.

        A hung file system (NFS, FUSE) blocks the execve. Meanwhile most /proc files of the process cannot be read, on
        Linux 6.18.44 not even its stat and links (exec_update_lock; begin_new_exec in fs/exec.c). In an execve the new
        address space has only a stack, which statm shows without a lock; a running process also has program text.
        """
        fields = (self._text(f"{pid}/statm") or "").split()
        return len(fields) == 7 and fields[3] == "0" and fields[0] == fields[5] != "0"

    def names(self, pid: int, directory: str, most: int) -> list[str]:
        """Return at most ``most`` names in a directory of the process; empty if it is unreadable or gone."""
        try:
            return os.listdir(f"{self._root}/{pid}/{directory}")[:most]
        except OSError:
            return []

    def thread_ids(self, pid: int) -> list[int]:
        """Return the process' thread ids, at most MAX_THREADS_READ."""
        return [int(tid) for tid in self.names(pid, "task", MAX_THREADS_READ)]

    def thread_name(self, pid: int, tid: int) -> str:
        """Return a thread's name; empty if it is gone."""
        return (self._text(f"{pid}/task/{tid}/comm") or "").rstrip("\n")

    def thread_stat(self, pid: int, tid: int) -> Stat | None:
        """Return a thread's stat; None if it is gone."""
        text = self._text(f"{pid}/task/{tid}/stat")
        return None if text is None else parse_stat(text)

    def threads(self, pid: int) -> list[Stat]:
        """Return the stats of the process' threads, the main thread first, at most MAX_THREADS_READ."""
        stats = (self.thread_stat(pid, tid) for tid in self.thread_ids(pid))
        return [stat for stat in stats if stat is not None]

    def run_queue_wait(self, pid: int, tid: int) -> int | None:
        """Return how long (ns) a ready thread waited for a CPU; None if it is gone or the kernel does not count."""
        return parse_schedstat(self._text(f"{pid}/task/{tid}/schedstat") or "")

    def kernel_frames(self, pid: int, tid: int) -> list[str]:
        """Return the kernel functions that a thread waits in, innermost first; empty if it runs or cannot be read.

        CAP_SYS_ADMIN gives all functions; the right to read the environment gives only the innermost.
        """
        stack = self._text(f"{pid}/task/{tid}/stack") or ""
        if frames := _FRAME.findall(stack):
            return frames[:MAX_FRAMES]
        channel = (self._text(f"{pid}/task/{tid}/wchan") or "").strip()
        return [channel] if _FUNCTION.fullmatch(channel) else []

    def blocked_on_mount(self, pid: int, tid: int) -> int | None:
        """Return the mount id of the file that a thread's system call reads or writes; None if unknown.

        Needs the right to read the process' environment, and further rights where Yama restricts tracing. Never blocks
        on a file system: it only reads the kernel's own tables.
        """
        call = _CALL.match(self._text(f"{pid}/task/{tid}/syscall") or "")
        if call is None or int(call[1]) not in _FILE_CALLS:
            return None
        mount = _MOUNT_ID.search(self._text(f"{pid}/fdinfo/{int(call[2], 16)}") or "")
        return None if mount is None else int(mount[1])

    def mounts(self, pid: int) -> dict[int, str]:
        """Return the types of file systems in the process' mount namespace, by mount id."""
        raw = self._bytes_if_any(f"{pid}/mountinfo", MAX_MOUNTS_BYTES) or b""
        return {int(match[1]): match[2].decode("ascii", "replace") for match in _MOUNT.finditer(raw)}

    def counts_io_wait(self) -> bool:
        """Return False if the kernel does not count how long threads wait for disks (kernels before 5.14 always do)."""
        return (self._text("sys/kernel/task_delayacct") or "1").strip() != "0"

    def thread_status(self, pid: int, tid: int) -> Status | None:
        """Return a thread's status; None if it is gone."""
        text = self._text(f"{pid}/task/{tid}/status")
        return None if text is None else parse_status(text)

    def environment(self, pid: int) -> dict[str, str] | None:
        """Return the process' initial environment; None if it is unreadable or the process is gone."""
        raw = self._bytes_if_any(f"{pid}/environ", MAX_ENVIRONMENT_BYTES)
        if raw is None:
            return None
        pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
        return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}

    def title(self, pid: int) -> str:
        """Return the command line, with blanks between words; empty if the process is gone.

        Cut to MAX_TITLE_BYTES. The process can have changed it.
        """
        raw = self._bytes_if_any(f"{pid}/cmdline", MAX_TITLE_BYTES) or b""
        return raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")

    def arguments(self, pid: int) -> list[str]:
        """Return the whole words in the command line's first MAX_ARGUMENTS_BYTES; empty if the process is gone."""
        raw = self._bytes_if_any(f"{pid}/cmdline", MAX_ARGUMENTS_BYTES) or b""
        return raw.decode("utf-8", "replace").split("\0")[:-1]  # after the last NUL: empty, or an incomplete word

    def namespace(self, pid: int, kind: str) -> int:
        """Return the inode of the process' namespace of ``kind`` (pid, uts, net, mnt); 0 if unreadable."""
        try:
            return int(os.readlink(f"{self._root}/{pid}/ns/{kind}").partition("[")[2].rstrip("]") or 0)
        except (OSError, ValueError):
            return 0

    def directory(self, pid: int) -> str:
        """Return the process' working directory; empty if unreadable. Never blocks on a file system.

        Bytes that are not UTF-8 are replaced: the checkpoint needs text.
        """
        try:
            return os.readlink(os.fsencode(f"{self._root}/{pid}/cwd")).decode("utf-8", "replace")
        except OSError:
            return ""

    def cgroup(self, pid: int) -> dict[str, str]:
        """Return the process' cgroup paths by controller list ('' is the unified hierarchy)."""
        return dict(_GROUP.findall(self._text(f"{pid}/cgroup") or ""))

    def maps_library(self, pid: int, names: re.Pattern[bytes]) -> bool | None:
        """Return True if the path of a mapped file matches ``names``; None if the maps are unreadable."""
        maps = self._bytes_if_any(f"{pid}/maps", MAX_MAPS_BYTES)
        return None if maps is None else names.search(maps) is not None

    def open_files(self, pid: int, identify: Callable[[str], bool]) -> list[OpenFile] | None:
        """Return the process' descriptors of files with a path; None if unreadable.

        Device and inode are 0 unless ``identify`` is true for the path: a stat can block on a hung file system.
        """
        folder = f"{self._root}/{pid}/fd"
        if self.is_in_exec(pid):
            return None
        try:
            numbers = os.listdir(folder)[:MAX_FILES_READ]
        except OSError:
            return None
        files = []
        for number in numbers:
            try:
                target = os.readlink(f"{folder}/{number}")
                if not target.startswith("/"):
                    continue
                info = os.stat(f"{folder}/{number}") if identify(target) else None
            except OSError:
                continue
            device, inode = (info.st_dev, info.st_ino) if info else (0, 0)
            files.append(OpenFile(int(number), target, device, inode))
        return files

    def holds(self, pid: int, file: OpenFile) -> bool | None:
        """Return True if the descriptor still leads to ``file``; None if unreadable.

        While the link is unchanged, only the link is read: unlike a stat, this never blocks on a hung file system.
        """
        path = f"{self._root}/{pid}/fd/{file.fd}"
        try:
            if os.readlink(path) == file.target:
                return True
            info = os.stat(path)  # renamed, deleted, or replaced by another file
        except FileNotFoundError:
            return False
        except OSError:
            return None
        return (info.st_dev, info.st_ino) == (file.device, file.inode)

    def may_write(self, pid: int, file: OpenFile) -> bool:
        """Return False if the process has ``file`` open only for reading; True otherwise, or if this is unreadable."""
        flags = _FLAGS.search(self._text(f"{pid}/fdinfo/{file.fd}") or "")
        return flags is None or int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        return (self._text("sys/kernel/random/boot_id") or "unknown").strip()

    def boot_seconds(self) -> float:
        """Return the start of this boot in epoch seconds (btime of /proc/stat); 0 if unknown."""
        match = _BOOT_TIME.search(self._bytes("stat", _MAX_STAT_BYTES))
        return float(match[1]) if match else 0.0

    def _text(self, path: str) -> str | None:
        """Return the text of a small file, read at once; None if the file is gone or unreadable."""
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

    def _bytes_if_any(self, path: str, limit: int) -> bytes | None:
        try:
            return self._bytes(path, limit)
        except OSError:
            return None

    def _bytes(self, path: str, limit: int) -> bytes:
        fd = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            remaining_bytes = limit
            while remaining_bytes > 0 and (piece := os.read(fd, min(remaining_bytes, _PIECE_BYTES))):
                pieces.append(piece)
                remaining_bytes -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)
