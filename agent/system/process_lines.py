"""Parse /proc/PID/stat and /proc/PID/status (proc(5)) within the kernel's limits. Pure."""

import re

import msgspec

from agent.core.identity import ProcessKey

_KERNEL_THREAD_FLAG = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_EXITING_FLAG = 0x00000004  # PF_EXITING, set before the kernel tears down the process (kernel/exit.c)
_SIGKILL_BIT = 1 << 8
_MAX_NUMBER = 1 << 62
MAX_CPU_LIST = 256  # Characters
_MAX_TICKS = 1 << 46  # Limit of a time in ticks (1/100 s): 20,000 years; a longer time is damage
_SCHEDSTAT = re.compile(r"(\d{1,20}) (\d{1,20}) (\d{1,20})\n?")


class Stat(msgspec.Struct, frozen=True, gc=False):
    """Used fields of /proc/PID/stat. ``exit_code``: in waitpid's form, 0 without ptrace rights.

    ``exiting``: the kernel tears down the main thread: its descriptors can be gone long before the process is a zombie.
    CPU time and major faults of a process include all its threads, even ended threads; a thread's stat has only the
    values of this thread. ``io_wait_ticks`` is always of one thread. ``waited_cpu_ticks``: CPU time of the children
    that the process waited for, and of their children.
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
    cpu_ticks: int = 0
    waited_cpu_ticks: int = 0
    major_faults: int = 0
    resident_pages: int = 0
    io_wait_ticks: int = 0

    @property
    def key(self) -> ProcessKey:
        """Return the key, which stays unique when the pid is reused."""
        return ProcessKey(self.pid, self.start_ticks)

    @property
    def over(self) -> bool:
        """Return True for a zombie without other threads, which only waits for its parent."""
        return self.state in "ZX" and self.threads <= 1


class Status(msgspec.Struct, frozen=True, gc=False):
    """Used fields of /proc/PID/status.

    ``namespace_pids``: from the agent's pid namespace inwards. ``uid``: the real uid. ``root``: all four uids are 0.
    ``swap_bytes``: of the whole process. ``context_switches``: of the thread only. ``cpus``: list of allowed CPUs, at
    most 256 characters; empty if missing or longer.
    """

    uid: int
    namespace_pids: tuple[int, ...]
    kill_pending: bool
    context_switches: int
    root: bool = False
    swap_bytes: int = 0
    cpus: str = ""


def parse_stat(text: str) -> Stat | None:
    """Parse /proc/PID/stat; None if it is invalid. The name is in brackets and can contain anything."""
    try:
        pid, rest = text.split(" ", 1)
        name, tail = rest[1:].rsplit(") ", 1)
        fields = tail.split()
        stat = Stat(
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
            cpu_ticks=int(fields[11]) + int(fields[12]),
            waited_cpu_ticks=int(fields[13]) + int(fields[14]),
            major_faults=int(fields[9]),
            resident_pages=int(fields[21]),
            io_wait_ticks=int(fields[39]),
        )
    except (ValueError, IndexError):
        return None
    times = (stat.start_ticks, stat.cpu_ticks, stat.waited_cpu_ticks, stat.io_wait_ticks)
    numbers = (stat.pid, stat.parent_pid, stat.threads, stat.exit_code, stat.major_faults, stat.resident_pages)
    is_valid = min(*numbers, *times) >= 0 and max(numbers) <= _MAX_NUMBER and max(times) <= _MAX_TICKS
    return stat if is_valid else None


def parse_status(text: str) -> Status | None:
    """Parse /proc/PID/status (or a thread's); None if it is invalid."""
    fields = dict(line.split(":", 1) for line in text.split("\n") if ":" in line)
    try:
        cpus = fields.get("Cpus_allowed_list", "").strip()
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        status = Status(
            uid=int(fields["Uid"].split()[0]),
            namespace_pids=tuple(int(pid) for pid in fields.get("NSpid", fields["Pid"]).split()),
            kill_pending=bool(pending & _SIGKILL_BIT),
            context_switches=sum(int(fields[f"{kind}voluntary_ctxt_switches"]) for kind in ("", "non")),
            root=fields["Uid"].split() == ["0"] * 4,
            swap_bytes=1024 * int(fields.get("VmSwap", "0").split()[0]),  # absent for a zombie
            cpus=cpus if len(cpus) <= MAX_CPU_LIST else "",
        )
    except (KeyError, ValueError, IndexError):
        return None
    numbers = (status.uid, *status.namespace_pids, status.context_switches, status.swap_bytes)
    is_valid = status.namespace_pids and min(numbers) >= 0 and max(numbers) <= _MAX_NUMBER
    return status if is_valid else None


def parse_schedstat(text: str) -> int | None:
    """Return how long (ns) a thread waited for a CPU while ready, from schedstat; None if the kernel does not count.

    A kernel that does not count writes three zeros (kernel/sched/stats.h, sched_info_on).
    """
    match = _SCHEDSTAT.fullmatch(text)
    if match is None or not int(match[3]) or int(match[2]) > _MAX_NUMBER:
        return None
    return int(match[2])
