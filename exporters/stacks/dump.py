"""Runs py-spy on one process and parses its output. In the helper; blocking.

`py-spy dump --nonblocking` stops nothing: it only reads the process's memory, through /proc/PID/mem if the service's
filter refuses process_vm_readv. It does not run on a process with a thread in uninterruptible sleep: reading its maps
could wait for that thread.
"""

import os
import resource
import subprocess
import threading
from typing import Literal

import msgspec

from exporters.stacks.frames import Stack, stack_of

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 4096
CPU_SECONDS = 5
DUMP_SECONDS = 5.0
MAX_LOOKED_AT = 1024  # Threads of one process whose state is read

Result = Literal["read", "gone", "uninterruptible", "not_permitted", "no_python", "too_large", "failed"]
RESULTS: tuple[Result, ...] = ("read", "gone", "uninterruptible", "not_permitted", "no_python", "too_large", "failed")


class StackRequest(msgspec.Struct, frozen=True):
    """The process to read below ``proc_root``: its pid, and its start (ticks since boot)."""

    program: str
    proc_root: str
    pid: int
    start_ticks: int


class StackAnswer(msgspec.Struct, frozen=True):
    """``stack``: only if it was read; ``error``: otherwise py-spy's message."""

    result: Result
    stack: Stack | None = None
    error: str = ""


def take_stack(request: StackRequest, _body: bytes) -> StackAnswer:
    """Return the stack of the requested process, or the reason for none."""
    states = _states(request)
    if states is None:
        return StackAnswer("gone")
    if "D" in states:
        return StackAnswer("uninterruptible")
    try:
        answer, error = _run([request.program, "dump", "--nonblocking", "--json", "--pid", str(request.pid)])
    except OSError as failure:
        return StackAnswer("failed", error=f"{request.program}: {failure.strerror}")
    if len(answer) > MAX_OUTPUT_BYTES:
        return StackAnswer("too_large")
    try:
        stack = stack_of(answer, _ids(request))
    except msgspec.DecodeError:
        return _refused(error)
    return StackAnswer("no_python") if stack is None else StackAnswer("read", stack)


def _refused(error: str) -> StackAnswer:
    """Return the result for a message of py-spy that has no stacks."""
    message = error.lower()
    if "permission denied" in message or "operation not permitted" in message:
        return StackAnswer("not_permitted", error=error)
    if "python version" in message or "python interpreter" in message:
        return StackAnswer("no_python", error=error)
    return StackAnswer("failed", error=error or "no answer in time")


def _run(command: list[str]) -> tuple[bytes, str]:
    """Run a program within its time limit; return at most MAX_OUTPUT_BYTES + 1 of output, and the first error line."""
    with subprocess.Popen(  # noqa: S603  # root configured it
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=True
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        timer = threading.Timer(DUMP_SECONDS, process.kill)
        timer.start()
        try:
            answer = process.stdout.read(MAX_OUTPUT_BYTES + 1) if process.stdout else b""
            if len(answer) > MAX_OUTPUT_BYTES:
                process.kill()
            error = process.stderr.read(MAX_ERROR_BYTES) if process.stderr else b""
        finally:
            timer.cancel()
            process.kill()
    lines = error.decode(errors="replace").strip().splitlines()
    return answer, lines[0][:256] if lines else ""


def _states(request: StackRequest) -> str | None:
    """Return the states of the process's threads; None if it has ended."""
    home = f"{request.proc_root}/{request.pid}"
    fields = _stat(f"{home}/stat")
    if len(fields) < 20 or fields[19] != str(request.start_ticks):
        return None
    try:
        threads = os.listdir(f"{home}/task")[:MAX_LOOKED_AT]
    except OSError:
        return None
    return "".join(state for thread_id in threads for state in _stat(f"{home}/task/{thread_id}/stat")[:1])


def _stat(path: str) -> list[str]:
    """Return the fields of a stat file from the third on (proc(5)); none without the file."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _ids(request: StackRequest) -> set[int]:
    """Return the ids of the process's main thread: in our pid namespace and in its own."""
    pids = {request.pid}
    try:
        with open(f"{request.proc_root}/{request.pid}/status", "rb", buffering=0) as file:
            lines = file.read(8192).decode(errors="replace").splitlines()
    except OSError:
        return pids
    for line in lines:
        if line.startswith("NSpid:"):
            pids.add(int(line.split()[-1]))
    return pids
