"""A helper process from the agent's side: its start, streams, log and end. The agent never blocks on it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.core.log import Logger
from agent.helper.frames import HEADER_BYTES, FrameKind, frame, parse_header

MAX_LINE_BYTES = 512  # Limit of an unfinished line on standard error; a longer line is logged at once
_MAIN = Path(__file__).with_name("main.py")
_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}  # One heap, which returns free memory early


class _Spawned(NamedTuple):
    pid: int
    pidfd: int
    stream: socket.socket
    stderr: int


def _spawn(target: str, memory_bytes: int) -> _Spawned:
    """Start a new process; raises OSError if that fails.

    Runs on the event loop's thread: the kernel kills a helper when the *thread* that started it ends. Whichever thread
    starts it, the interpreter stops until the exec, for one or two milliseconds.
    """
    path = os.pathsep.join(sys.path)
    arguments = [sys.executable, "-I", "-X", "faulthandler", str(_MAIN), target, str(memory_bytes), str(os.getpid())]
    stream, child_stream = socket.socketpair()
    stderr, child_stderr = os.pipe()
    try:
        descriptors = (child_stream.fileno(), child_stream.fileno(), child_stderr)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)]
        environment = {**os.environ, **_MALLOC}
        pid = os.posix_spawn(sys.executable, [*arguments, path], environment, file_actions=actions)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    except OSError:
        stream.close()
        os.close(stderr)
        raise
    finally:
        child_stream.close()
        os.close(child_stderr)
    return _Spawned(pid, pidfd, stream, stderr)


class HelperProcess:
    """A spawned process. ``ending``: how the process ended; empty before the end. ``killed``: the agent killed it."""

    def __init__(
        self, spawned: _Spawned, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Logger
    ) -> None:
        self.pid = spawned.pid
        self.killed = False
        self.ending = ""
        self._pidfd = spawned.pidfd
        self._stderr = spawned.stderr
        self._line = b""
        self._reader = reader
        self._writer = writer
        self._log = log
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(spawned.stderr, False)
        self._loop.add_reader(spawned.stderr, self._listen)
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    async def start(cls, target: str, memory_bytes: int, log: Logger) -> HelperProcess:
        """Start a process that answers calls with ``target`` (see ``agent.helper.serve``); raises OSError."""
        spawned = _spawn(target, memory_bytes)
        reader, writer = await asyncio.open_connection(sock=spawned.stream)
        return cls(spawned, reader, writer, log)

    @property
    def is_gone(self) -> bool:
        """Return True once the process has ended and was reaped."""
        return self._gone.is_set()

    async def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Send a frame and wait until the stream can take the next frame; raises OSError if the process is gone."""
        self._writer.write(frame(kind, payload))
        await self._writer.drain()

    async def receive(self) -> tuple[FrameKind, bytes]:
        """Return the next frame; raises EOFError or OSError at the stream's end, FrameError for an invalid frame."""
        kind, length = parse_header(await self._reader.readexactly(HEADER_BYTES))
        return kind, await self._reader.readexactly(length)

    async def gone_within(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the process' exit; return True if the process has exited."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self.is_gone

    def end(self) -> None:
        """Tell the process to exit after its current answer."""
        if not self.is_gone:
            self._writer.write_eof()

    def kill(self) -> None:
        """Kill the process if it runs, and close its streams. A process in uninterruptible sleep exits later."""
        self.killed = True
        if not self.is_gone:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._writer.transport.abort()

    def _listen(self) -> None:
        try:
            data = os.read(self._stderr, 4096)
        except BlockingIOError:
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop() if data else b""
        if len(self._line) > MAX_LINE_BYTES:
            lines.append(self._line)
            self._line = b""
        for line in filter(None, lines):
            self._log.warning("a helper wrote to its standard error", text=line.decode("utf-8", "backslashreplace"))
        if not data:
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        try:
            status = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # the agent was started with SIGCHLD ignored, so the kernel reaps children
            status = None
        os.close(self._pidfd)
        self._gone.set()
        self.ending = "ended" if status is None else _ending(status)


def _ending(status: os.waitid_result) -> str:
    if status.si_code == os.CLD_EXITED:
        return f"exited with status {status.si_status}"
    names = {int(number): number.name for number in signal.Signals}  # real-time signals have no name
    return f"killed by {names.get(status.si_status, f'signal {status.si_status}')}"
