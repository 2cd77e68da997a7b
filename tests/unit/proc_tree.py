"""A fake /proc in the kernel's formats (proc(5)), for readers that take its root as a parameter."""

import os
import shutil
from pathlib import Path

_STATUS = """Name:\t{name}
Umask:\t0022
State:\t{state} (made up)
Tgid:\t{pid}
Pid:\t{pid}
PPid:\t{parent}
Uid:\t{uid}\t{uid}\t{uid}\t{uid}
NSpid:\t{namespace_pids}
SigPnd:\t0000000000000000
ShdPnd:\t{pending:016x}
voluntary_ctxt_switches:\t{switches}
nonvoluntary_ctxt_switches:\t0
"""


class ProcTree:
    """Processes below ``root``; a second ``add`` replaces a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (root / "sys/kernel/random/boot_id").write_text("0e8c0b1a-made-up\n")
        (root / "stat").write_text("cpu  1 2 3 4\nbtime 1700000000\nprocesses 9\n")

    def add(
        self,
        pid: int,
        *,
        name: str = "python3",
        state: str = "S",
        parent: int = 1,
        start: int = 5000,
        exit_code: int = 0,
        threads: dict[int, str] | None = None,
        thread_states: dict[int, tuple[str, int]] | None = None,
        uid: int = 0,
        namespace_pids: tuple[int, ...] | None = None,
        pending: int = 0,
        environment: dict[str, str] | None = None,
        files: dict[int, Path] | None = None,
        maps: str = "",
        cgroup: str = "0::/made.slice\n",
        kernel: bool = False,
        exiting: bool = False,
        title: str = "",
        session: int = 0,
        numbers: dict[int, int] | None = None,
    ) -> None:
        """Write one process. ``threads``: names of further threads; ``thread_states``: state and context switches.

        ``numbers``: fields of the stat lines of the process and its threads, keyed by their position in proc(5)."""
        folder = self.root / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        names = {pid: name, **(threads or {})}
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "ns/pid").symlink_to("pid:[4026531836]")
        flags = (0x00200040 if kernel else 0x00400040) | (0x4 if exiting else 0)
        for tid, thread in names.items():
            letter, switches = (thread_states or {}).get(tid, (state, 7))
            task = folder / "task" / str(tid)
            task.mkdir(parents=True)
            (task / "comm").write_text(thread + "\n")
            (task / "stat").write_text(
                stat_line(tid, thread, letter, parent, flags, len(names), start, exit_code, session, numbers)
            )
            inner = " ".join(map(str, namespace_pids or (pid,)))
            status = _STATUS.format(
                name=thread, state=letter, pid=tid, parent=parent, uid=uid, namespace_pids=inner, pending=pending,
                switches=switches,
            )  # fmt: skip
            (task / "status").write_text(status)
        shutil.copy(folder / f"task/{pid}/stat", folder / "stat")
        shutil.copy(folder / f"task/{pid}/status", folder / "status")
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_bytes(title.replace(" ", "\0").encode() + b"\0" * bool(title))
        (folder / "maps").write_text(maps)
        if environment is not None:
            pairs = b"".join(f"{key}={value}\0".encode() for key, value in environment.items())
            (folder / "environ").write_bytes(pairs)
        for number, target in (files or {}).items():
            os.symlink(target, folder / "fd" / str(number))

    def hold(self, pid: int, path: Path, number: int = 1, flags: str = "0100001") -> None:
        """Let a process hold a file open, for writing unless ``flags`` say otherwise."""
        folder = self.root / str(pid)
        (folder / "fdinfo").mkdir(exist_ok=True)
        (folder / f"fd/{number}").symlink_to(path)
        (folder / f"fdinfo/{number}").write_text(f"pos:\t0\nflags:\t{flags}\n")

    def note(self, pid: int, tid: int, **files: str) -> None:
        """Write files of one thread, keyed by name."""
        for name, text in files.items():
            (self.root / str(pid) / "task" / str(tid) / name).write_text(text)

    def remove(self, pid: int) -> None:
        """Remove a process."""
        shutil.rmtree(self.root / str(pid))


def stat_line(
    pid: int,
    name: str,
    state: str,
    parent: int,
    flags: int,
    threads: int,
    start: int,
    exit_code: int,
    session: int = 0,
    numbers: dict[int, int] | None = None,
) -> str:
    """Return a line of /proc/PID/stat with 52 fields; ``numbers``: fields by position."""
    fields = ["0"] * 53
    fields[4], fields[6], fields[9], fields[20] = map(str, (parent, session, flags, threads))
    fields[22], fields[52] = str(start), str(exit_code)
    for position, number in (numbers or {}).items():
        fields[position] = str(number)
    return f"{pid} ({name}) {state} {' '.join(fields[4:53])}\n"
