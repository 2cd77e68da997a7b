"""Runs py-spy on one process and parses its output. In the helper; blocking.

`py-spy dump --nonblocking` stops no thread: it only reads the process's memory, through /proc/PID/mem if the service's
filter refuses process_vm_readv. A process with a thread in uninterruptible sleep is not read: the read could wait for
this thread.
"""

import resource
import subprocess
import threading
from pathlib import Path
from typing import Literal, get_args

import msgspec

from agent.sdk.system import ProcFS
from exporters.stacks.frames import Stack, stack_of

MAX_OUTPUT_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 4096
CPU_SECONDS = 5
DUMP_SECONDS = 5.0

Result = Literal["read", "gone", "uninterruptible", "not_permitted", "no_python", "too_large", "failed"]
RESULTS: tuple[Result, ...] = get_args(Result)


class StackRequest(msgspec.Struct, frozen=True):
    """The process to read below ``proc_root``: its pid, and its start (ticks since boot)."""

    program: str
    proc_root: str
    pid: int
    start_ticks: int


class StackAnswer(msgspec.Struct, frozen=True):
    """``stack``: None unless ``result`` is "read". ``error``: py-spy's message, if it printed one."""

    result: Result
    stack: Stack | None = None
    error: str = ""


def take_stack(request: StackRequest, _body: bytes) -> StackAnswer:
    """Return the stack of the requested process, or why it has none."""
    proc, pid = ProcFS(Path(request.proc_root)), request.pid
    stat, status = proc.stat(pid), proc.status(pid)
    if stat is None or status is None or stat.key.start_ticks != request.start_ticks:
        return StackAnswer("gone")
    if any(thread.state == "D" for thread in proc.threads(pid)):
        return StackAnswer("uninterruptible")
    try:
        answer, error = _run([request.program, "dump", "--nonblocking", "--json", "--pid", str(pid)])
    except OSError as failure:
        return StackAnswer("failed", error=f"{request.program}: {failure.strerror}")
    if len(answer) > MAX_OUTPUT_BYTES:
        return StackAnswer("too_large")
    try:
        stack = stack_of(answer, {pid, status.namespace_pids[-1]})
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
