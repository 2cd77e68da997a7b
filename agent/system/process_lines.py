"""Lines of /proc/PID/stat and /proc/PID/status (proc(5)), with the kernel's bounds. Pure."""

from __future__ import annotations

import msgspec

from agent.core.identity import ProcessKey

_KERNEL_THREAD_FLAG = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_EXITING_FLAG = 0x00000004  # PF_EXITING, set before anything is torn down (kernel/exit.c)
_SIGKILL_BIT = 1 << 8
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
