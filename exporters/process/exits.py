"""Waits for the exit of rank processes by pidfd on the event loop, and reads their exit statuses.

Many processes can exit at once. The rank table learns of each exit immediately. A thread reads the exit statuses
together, and the table judges their jobs together: at once after a quiet time, else every JUDGE_PAUSE_SECONDS. The exit
status of a process that is not the agent's child is readable in two ways, and both are tried: while it is a zombie,
field 52 of /proc/PID/stat, with ptrace rights; after the parent has reaped it, PIDFD_GET_INFO with PIDFD_INFO_EXIT
(Linux 6.15, include/uapi/linux/pidfd.h).
"""

import asyncio
import contextlib
import fcntl
import os
import select
import struct
from collections.abc import Container, Mapping
from signal import SIGKILL

import msgspec

from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.metrics import label_fields
from agent.sdk.ranks import ExitStatus, ProcessKey, RankWriter, ending, in_words
from agent.sdk.system import ProcFS, Stat
from exporters.process.oom_kills import OomCount, OomLedger, OomNow, oom_now

_INFO_BYTES = 64  # PIDFD_INFO_SIZE_VER0
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60


def open_pidfd(proc: ProcFS, key: ProcessKey) -> int | OSError | None:
    """Return a pidfd of the process; None when it has ended or /proc cannot be read; the error if opening fails."""
    try:
        pidfd = os.pidfd_open(key.pid)
    except OSError as error:
        return None if _stat(proc, key) is None else error
    if _stat(proc, key) is not None:  # checked with the pidfd open, which keeps the pid from being reused
        return pidfd
    os.close(pidfd)
    return None


def _stat(proc: ProcFS, key: ProcessKey) -> Stat | None:
    """Return the stat of a process; None if it is gone, or unreadable now (out of descriptors: callers try again)."""
    try:
        stat = proc.stat(key.pid)
    except OSError:
        return None
    return stat if stat is not None and stat.key == key else None


def from_pidfd(pidfd: int) -> ExitStatus | None:
    """Return the status in the kernel's record; None before the parent's wait, or on a kernel without this record."""
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:  # not reaped yet, or no such ioctl; the caller counts statuses that stay unknown
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    (status,) = struct.unpack_from("i", info, _EXIT_CODE_OFFSET)
    return ExitStatus.from_wait(status)


def from_zombie(proc: ProcFS, key: ProcessKey, may_ptrace: bool) -> ExitStatus | None:
    """Return the exit status of a zombie; None when it is gone, or the agent has no right to read it.

    ``may_ptrace`` must be False if the process's environment was unreadable: the kernel then shows 0 for every status.
    """
    stat = _stat(proc, key) if may_ptrace else None
    return None if stat is None or stat.state not in "ZX" else ExitStatus.from_wait(stat.exit_code)


EXIT_TRIES_SECONDS = (0.0, 0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between tries to read an ended process's exit status: its parent may reap it late."""
JUDGE_PAUSE_SECONDS = 0.05  # Limits the work: judging a job of 1,024 ranks takes milliseconds


class _Exit(msgspec.Struct):
    """An ended process whose status is not known yet.

    ``early``: the status read when the exit was noticed. ``may_ptrace``: whether a zombie's status is reliable.
    ``oom``: its groups' OOM counts from before the exit. ``tries``: number of tries so far; ``due_at``: the next try
    (loop time).
    """

    key: ProcessKey
    pidfd: int | None
    early: ExitStatus | None
    may_ptrace: bool
    oom: OomCount | None
    due_at: float
    tries: int = 1


class _Answer(msgspec.Struct, frozen=True):
    """The result of a try: the exit's status, and the present counts of OOM kills in the process's control groups."""

    status: ExitStatus | None = None
    oom: OomNow | None = None
    error: Exception | None = None


class ExitWatch:
    """Waits on the event loop; ``_read``, which blocks, runs on ``thread``. ``ioctl``: use PIDFD_GET_INFO."""

    def __init__(self, ranks: RankWriter, proc: ProcFS, thread: OwnThread, log: Logger, *, ioctl: bool) -> None:
        self._ranks = ranks
        self._proc = proc
        self._thread = thread
        self._log = log
        self._ioctl = ioctl
        self._pidfds: dict[ProcessKey, int] = {}
        self._exits: dict[ProcessKey, _Exit] = {}
        self._news = asyncio.Event()
        self._learning: asyncio.Task[None] | None = None
        self._counts: Mapping[ProcessKey, OomCount] = {}
        self._ledger = OomLedger()
        self._judging: asyncio.TimerHandle | asyncio.Handle | None = None
        self._next_verdict_at = float("-inf")
        self.unknown_exits = 0

    def watched(self) -> frozenset[ProcessKey]:
        """Return the processes whose exit is awaited."""
        return frozenset(self._pidfds)

    def has_ended(self, key: ProcessKey) -> bool:
        """Return False if a process that is not in /proc still runs (pidfd): hidepid or an unmount hides it."""
        if (pidfd := self._pidfds.get(key)) is None:
            return True
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def watch(self, pidfds: Mapping[ProcessKey, int | OSError | None], running: Container[ProcessKey]) -> None:
        """Wait for the exit of these processes; close the pidfds of those that are no longer ``running``."""
        for key, pidfd in pidfds.items():
            if isinstance(pidfd, OSError):
                self._log.warning(
                    "process {pid} cannot be watched by pidfd: its exit will be seen up to a second late",
                    pid=key.pid,
                    error=pidfd.strerror,
                )
            elif pidfd is not None and key in running:
                self._pidfds[key] = pidfd
                asyncio.get_running_loop().add_reader(pidfd, self.note_exit, key)
            elif pidfd is not None:
                os.close(pidfd)

    def note_counts(self, counts: Mapping[ProcessKey, OomCount]) -> None:
        """Store for each running process the OOM kill counts of its control groups from before any recent kill."""
        self._counts = counts
        self._ledger.keep(
            [*counts.values(), *(exited.oom for exited in self._exits.values() if exited.oom is not None)]
        )

    def note_exit(self, key: ProcessKey) -> None:
        """Report to the rank table that a process has ended; its status follows.

        If the parent reaps at once, the zombie exists for microseconds. So the first try to read its status is
        immediate: for a zombie the kernel answers without waiting. Without a pidfd the pid may be another process's,
        and reading its status can block: then only the thread reads.
        """
        loop = asyncio.get_running_loop()
        pidfd = self._pidfds.get(key)
        if pidfd is not None:
            loop.remove_reader(pidfd)
        process = self._ranks.process(key)
        may_ptrace = process is not None and process.facts.environment is not None
        early = None if pidfd is None else from_zombie(self._proc, key, may_ptrace)
        self._ranks.observe_exit(key, None)
        self._judge_soon(loop)
        self._exits[key] = _Exit(key, pidfd, early, may_ptrace, self._counts.get(key), due_at=loop.time())
        self._news.set()
        if self._learning is None or self._learning.done():
            self._learning = loop.create_task(self._learn(loop), name="exit-statuses")

    async def stop(self) -> None:
        """Stop waiting. Try once more for each missing exit status; statuses that stay missing are unknown."""
        for pidfd in self._pidfds.values():
            asyncio.get_running_loop().remove_reader(pidfd)
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait({self._learning})
        if all_exited := tuple(self._exits.values()):
            answers = await self._thread.call(lambda: [self._read(exited) for exited in all_exited])
            for exited, answer in zip(all_exited, answers, strict=True):
                self._settle(exited, answer.status, answer.oom)
        if self._judging is not None:
            self._judging.cancel()
            self._ranks.judge_changed()
        for key in list(self._pidfds):
            self._unwatch(key)
        self._thread.stop()

    def _unwatch(self, key: ProcessKey) -> None:
        pidfd = self._pidfds.pop(key, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _judge_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._judging is None:
            now, judge = loop.time(), self._judge
            is_soon = self._next_verdict_at <= now
            self._judging = loop.call_soon(judge, loop) if is_soon else loop.call_at(self._next_verdict_at, judge, loop)

    def _judge(self, loop: asyncio.AbstractEventLoop) -> None:
        self._judging = None
        self._ranks.judge_changed()
        self._next_verdict_at = loop.time() + JUDGE_PAUSE_SECONDS

    async def _learn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read all statuses that are due together, until each status is known or has no try left."""
        while self._exits:
            self._news.clear()
            now = loop.time()
            due = tuple(exited for exited in self._exits.values() if exited.due_at <= now)
            if due:
                answers = await self._thread.call(lambda due=due: [self._read(exited) for exited in due])  # type: ignore[misc]
                for exited, answer in zip(due, answers, strict=True):
                    self._apply(exited, answer, loop.time())
                self._judge_soon(loop)
            else:
                next_at = min(exited.due_at for exited in self._exits.values())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), next_at - now)

    def _apply(self, exited: _Exit, answer: _Answer, now: float) -> None:
        """Settle the exit, or plan the next try if tries are left: without a pidfd further tries are pointless."""
        if answer.error is not None:
            fields = self._log_fields(exited.key)
            self._log.error("exit status of process {pid} could not be read", **fields, error=answer.error)
        status = answer.status
        if status is None and exited.pidfd is not None and exited.tries < len(EXIT_TRIES_SECONDS):
            exited.due_at = now + EXIT_TRIES_SECONDS[exited.tries]
            exited.tries += 1
            return
        self._settle(exited, status, answer.oom)

    def _settle(self, exited: _Exit, status: ExitStatus | None, oom: OomNow | None) -> None:
        del self._exits[exited.key]
        self._unwatch(exited.key)
        if status is None:
            self.unknown_exits += 1
            status = ExitStatus(known=False)
        elif status.signal == SIGKILL:
            status = msgspec.structs.replace(status, oom=self._ledger.assign(exited.oom, oom))
        self._ranks.observe_exit(exited.key, status)
        self._log_exit(exited.key, status)

    def _read(self, exited: _Exit) -> _Answer:
        """Read the status in both ways, then the control group (blocking; on the exit thread)."""
        try:
            status = exited.early
            if status is None and self._ioctl and exited.pidfd is not None:
                status = from_pidfd(exited.pidfd)
            status = status or from_zombie(self._proc, exited.key, exited.may_ptrace)
            if status is None or status.signal != SIGKILL or exited.oom is None:
                return _Answer(status)
            return _Answer(status, oom_now(exited.oom))
        except Exception as error:  # noqa: BLE001  # only this process's status is lost; logged
            return _Answer(error=error)

    def _log_fields(self, key: ProcessKey) -> dict[str, object]:
        """Return the fields of a log line about a process. The number of lines is limited for each ``user``."""
        process = self._ranks.process(key)
        labels, user = ((), "") if process is None else (process.labels, process.user)
        return {**label_fields(labels), "pid": key.pid, "user": user}

    def _log_exit(self, key: ProcessKey, status: ExitStatus) -> None:
        process = self._ranks.process(key)
        if process is None or not (process.labels or process.is_surely_a_rank()):
            return  # evicted, or no rank: a launcher that maps the library, as torchrun does
        reason, signal, code = ending(status)
        how = in_words(reason, signal, code)  # in the message: repeats are limited for each kind of end
        fields = {name: value for name, value in (("signal", signal), ("code", code)) if value}
        self._log.info(f"rank {{rank}} of job {{job_id}} {how}, pid {{pid}}", **fields, **self._log_fields(key))
