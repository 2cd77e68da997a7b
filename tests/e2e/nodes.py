"""Machines for tests: processes in pid, UTS, network and mount namespaces of their own on one real machine."""

from __future__ import annotations

import ctypes
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

CLONE_NEWNET = 0x40000000
CLOSE_SECONDS = 10.0
NAMESPACES = ("--pid", "--uts", "--net", "--mount")

_INIT = """
import fcntl, os, signal, socket, struct, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
socket.sethostname(sys.argv[1])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
def leave_with_the_test():
    os.read(0, 1)  # ends when the test process closes it or dies
    os._exit(0)    # init's end is the end of everything in the node
threading.Thread(target=leave_with_the_test).start()
os.write(1, b"up")
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class Reply(NamedTuple):
    """An HTTP response; ``body`` is text."""

    status: int
    headers: dict[str, str]
    body: str


def why_no_nodes() -> str | None:
    """Return the reason why nodes cannot be made (for a skipped test), or None."""
    if sys.platform != "linux":
        return "namespaces need Linux"
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in ("unshare", "nsenter") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} (util-linux) not found" if missing else None


class Closing:
    """A context manager that calls ``close``."""

    def close(self) -> None:
        """End everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Node(Closing):
    """A machine with its own processes, host name and loopback; its files are this machine's.

    A context manager. All its processes die at ``close``, and also when the test process dies. Pids are the node's."""

    def __init__(self, hostname: str) -> None:
        """Start the node; raises RuntimeError if it does not start."""
        self.hostname = hostname
        command = ["unshare", "--fork", "--kill-child", "--mount-proc", *NAMESPACES]
        self._unshare = subprocess.Popen(
            [*command, sys.executable, "-S", "-c", _INIT, hostname], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._entered: list[subprocess.Popen[Any]] = []
        assert self._unshare.stdout is not None
        if self._unshare.stdout.read(2) != b"up":
            self.close()
            raise RuntimeError(f"node {hostname} did not start: {why_no_nodes() or 'see standard error'}")
        parent = self._unshare.pid
        self.init_pid = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        self._pid_namespace = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        self._network = os.open(f"/proc/{self.init_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def proc(self) -> Path:
        """Return the node's /proc, as a path on this machine."""
        return Path(f"/proc/{self.init_pid}/root/proc")

    def popen(
        self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start ``argv`` in the node; ``options`` are Popen's.

        The object has the program's output, wait and return code. Signals go through :meth:`kill`."""
        command = ["nsenter", f"--target={self.init_pid}", *NAMESPACES, "--", *map(str, argv)]
        process = subprocess.Popen(command, env=env, **options)
        self._entered.append(process)
        return process

    def run(
        self, argv: Sequence[str | Path], timeout: float = 30.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` in the node to its end and return its output as text; raises TimeoutExpired."""
        process = self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        output, errors = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(list(map(str, argv)), process.returncode, output, errors)

    def pids(self) -> set[int]:
        """Return the pids in the node, init (1) included."""
        return {int(entry.name) for entry in self.proc.iterdir() if entry.name.isdigit()}

    def host_pid(self, pid: int) -> int:
        """Return this machine's pid of the node's process ``pid``; raises ProcessLookupError."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _is_process(entry, self._pid_namespace, pid):
                return int(entry.name)
        raise ProcessLookupError(f"no process {pid} in {self.hostname}")

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to the node's process ``pid``; raises ProcessLookupError."""
        os.kill(self.host_pid(pid), number)

    def connect(self, port: int, timeout: float = 5.0) -> socket.socket:
        """Return a socket connected to ``port`` of the node's loopback; raises OSError."""
        return self._inside(lambda: socket.create_connection(("127.0.0.1", port), timeout))

    def curl(self, port: int, path: str, timeout: float = 5.0) -> Reply:
        """Get ``path`` from the node's loopback ``port``; raises OSError without a reply."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        connection.sock = self.connect(port, timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on ``port`` of the node's loopback; raises OSError."""
        return self._inside(lambda: socket.create_server(("127.0.0.1", port)))

    def power_off(self) -> None:
        """Kill all processes at once, as a power failure does; ``close`` must still be called."""
        os.kill(self.init_pid, signal.SIGKILL)
        self._unshare.wait(CLOSE_SECONDS)

    def _inside(self, make: Callable[[], socket.socket]) -> socket.socket:
        made: list[socket.socket | OSError] = []

        def enter_and_make() -> None:
            # Only this thread enters the namespace; the socket stays in the namespace after the thread's end.
            try:
                if ctypes.CDLL(None, use_errno=True).setns(self._network, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
                made.append(make())
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter_and_make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]

    def close(self) -> None:
        """Kill everything in the node; may be called twice."""
        if self._unshare.stdin is not None:
            self._unshare.stdin.close()
        for process in self._entered:
            # nsenter stops itself when its program is stopped; init cannot end before nsenter has reaped the program.
            process.send_signal(signal.SIGCONT)
        try:
            self._unshare.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._unshare.kill()  # --kill-child kills init as well
            self._unshare.wait()
        if self._unshare.stdout is not None:
            self._unshare.stdout.close()
        for process in self._entered:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._entered.clear()
        if (network := self.__dict__.pop("_network", None)) is not None:
            os.close(network)


def wait_until(condition: Any, seconds: float = 10.0, what: str = "the condition") -> Any:
    """Poll ``condition`` until its result is true, and return the result; raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.02)
    return result


def _is_process(entry: Path, pid_namespace: str, pid: int) -> bool:
    try:
        if os.readlink(entry / "ns/pid") != pid_namespace:
            return False
        status = (entry / "status").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # it has exited
    own = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return int(own[-1]) == pid
