"""A job whose ranks only run NVIDIA's own RAS, without a GPU; see rasrank/README.md."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
from jobs import ROOT
from nodes import Closing, Node

from exporters.ras.query.policy import MIN_INTERVAL_SECONDS

VERSION = "2.32.3"
"""The version that scripts/test downloads, and those that scripts/test --full downloads."""
VERSIONS = ("2.24.3", "2.27.7", "2.28.3", "2.28.9", "2.29.7", "2.30.7", "2.31.2", VERSION)
LEAVE_SECONDS = 10.0
FIRST_GROUP_HASH = 0x5000
WORLD_HASH = 0x1234567890ABCDEF
POLL_SECONDS = 1.1 * MIN_INTERVAL_SECONDS + 2.0 + 1.0
"""Time to the next report: an interval with its jitter, the scan of /proc, and a second on a busy machine."""
WORLD = "1234567890abcd"
"""The label of the world communicator."""
_SOURCE = Path(__file__).with_name("rasrank")


def library(version: str = VERSION) -> Path:
    """Return the path of a version's library, if it was downloaded."""
    return ROOT / ".cache" / "nccl" / version / "libnccl.so.2"


def why_no_ras(version: str = VERSION) -> str | None:
    """Return the reason why RAS cannot run, or None."""
    if platform.machine() != "x86_64":
        return "no layout of libnccl for this machine"
    if shutil.which("cc") is None:
        return "no C compiler found"
    if library(version).exists():
        return None
    full = "" if version == VERSION else " --full"
    return f"no libnccl {version} in .cache/nccl: scripts/test{full} fetches it"


def build_program(directory: Path, *options: str) -> Path:
    """Compile the program that acts as a rank in ``directory``, unless it exists; return its path."""
    program = directory / "rasrank"
    if not program.exists():
        subprocess.run(["cc", "-O1", *options, "-o", program, _SOURCE / "rasrank.c", "-ldl"], check=True)
    return program


def in_a_rank(directory: Path) -> str:
    """Return the arguments of torchrun/reduce.py to run RAS: rasrank as a library, NVIDIA's library and its layout."""
    return f"{build_program(directory, '-shared', '-fPIC')} {library()} {_SOURCE / f'{VERSION}.layout'}"


class RasJob(Closing):
    """``ranks`` processes, one rank each, which serve RAS at ``port`` of the loopback, in one world communicator.

    Rank r is on the fictional node 127.0.BASE.(2 + r / ``ranks_per_node``), on GPU r modulo ``ranks_per_node``; or on
    one of ``machines`` (address, node), where RAS has its default address and ``port`` is 28028. ``env`` is added to
    the ranks' environment. ``directory`` gets the program and the library's log. A context manager; ``close`` ends all
    processes."""

    def __init__(
        self,
        directory: Path,
        ranks: int,
        port: int = 28028,
        *,
        ranks_per_node: int = 4,
        base: int = 77,
        env: Mapping[str, str] | None = None,
        job_id: str = "4711",
        version: str = VERSION,
        machines: Sequence[tuple[str, Node]] = (),
    ) -> None:
        self.port = port
        self.job_id = job_id
        self.ranks = range(ranks)
        self.members: dict[str, list[int]] = {}
        self.labels: dict[str, str] = {}
        """By communicator name: the ranks in order, and the expected label comm."""
        self._ranks_per_node = ranks_per_node
        self._machines = machines
        program = build_program(directory)
        places = [rank // ranks_per_node for rank in self.ranks]
        self.hosts = [machines[position][0] if machines else f"127.0.{base}.{2 + position}" for position in places]
        self._log = (directory / f"rasrank-{job_id}.log").open("wb")
        self.processes: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []
        """The pids in the processes' own namespaces."""
        self._children: list[int] = []
        try:
            for rank in self.ranks:
                environment = {
                    **os.environ,
                    **({} if machines else {"NCCL_RAS_ADDR": f"127.0.0.1:{port}"}),
                    "NCCL_SET_THREAD_NAME": "1",
                    "SLURM_JOB_ID": job_id,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    **(env or {}),
                }
                argv: list[str | Path] = [program, library(version), _SOURCE / f"{version}.layout", self.hosts[rank]]
                popen = machines[places[rank]][1].popen if machines else subprocess.Popen
                self.processes.append(
                    popen(
                        argv,
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._log,
                        text=True,
                    )
                )
            self.pids = [int(self._answer(rank)) for rank in self.ranks]
            self.communicator("world", WORLD_HASH, self.ranks)
        except BaseException:
            self.close()
            raise

    # -- communicators ---------------------------------------------------------------------------------------------

    def communicator(self, name: str, hash_number: int, ranks: Sequence[int]) -> None:
        """Make a communicator of these ranks, in this order."""
        self.members[name] = list(ranks)
        self.labels[name] = f"{hash_number:x}"[:14]
        for comm_rank, rank in enumerate(ranks):
            gpu = rank % self._ranks_per_node
            self._send(rank, f"join {name} {hash_number:x} {len(ranks)} {comm_rank} {gpu}")
        descriptions = "".join([self._answer(rank) for rank in ranks])
        for rank in ranks:
            self._send(rank, f"meet {name} {descriptions}")
        self._expect_ok(ranks)

    def groups(self, tensor_parallel: int) -> None:
        """Make the groups of a training job: tp0, tp1, ... of neighbours, and across them dp0, dp1, ..."""
        size = len(self.ranks)
        tensor = [list(range(first, first + tensor_parallel)) for first in range(0, size, tensor_parallel)]
        data = [list(range(first, size, tensor_parallel)) for first in range(tensor_parallel)]
        found = [(f"{kind}{n}", each) for kind, made in (("tp", tensor), ("dp", data)) for n, each in enumerate(made)]
        for number, (name, ranks) in enumerate(found):
            self.communicator(name, FIRST_GROUP_HASH + number, ranks)

    def launch(self, name: str, collective: str, count: int, ranks: Iterable[int] | None = None) -> None:
        """Let ranks (all of the communicator) launch a collective ``count`` times."""
        self._tell(f"launch {name} {collective} {count}", self.members[name] if ranks is None else ranks)

    def set(self, rank: int, name: str, member: str, value: int) -> None:
        """Set a field of one rank's communicator: asyncResult, initState, finalizeCalled or destroyFlag."""
        self._tell(f"set {name} {member} {value}", [rank])

    def abort(self, rank: int, name: str) -> None:
        """Let one rank abort a communicator without leaving it."""
        self._tell(f"abort {name}", [rank])

    def leave(self, rank: int, name: str) -> None:
        self._tell(f"leave {name}", [rank])

    # -- processes -------------------------------------------------------------------------------------------------

    def fork(self, rank: int) -> int:
        """Let one rank fork a child, which inherits its open files; return the child's pid."""
        self._send(rank, "fork")
        child = int(self._answer(rank))
        self._children.append(child)
        return child

    def signal(self, rank: int, number: int = signal.SIGKILL) -> None:
        if self._machines:
            self._machines[rank // self._ranks_per_node][1].kill(self.pids[rank], number)
        else:
            self.processes[rank].send_signal(number)

    def connected(self) -> list[int]:
        """Return the ranks that a client is connected to, once for each connection."""
        return [
            rank
            for rank, process in enumerate(self.processes)
            if process.poll() is None
            for net_connection in psutil.Process(process.pid).net_connections("tcp4")
            if net_connection.laddr.port == self.port and net_connection.status != psutil.CONN_LISTEN
        ]

    def exit(self) -> None:
        """Let all ranks exit with status 0, and wait until they have."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(LEAVE_SECONDS) for process in self.processes] == [0] * len(self.processes)

    def close(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it never read the last command
                process.stdin.close()
        for rank, process in enumerate(self.processes):
            self._end(rank, process)
        self._log.close()

    def _end(self, rank: int, process: subprocess.Popen[str]) -> None:
        try:
            process.wait(LEAVE_SECONDS / 10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                self.signal(rank)
            process.kill()  # in a node, this kills the process that started it
            process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _tell(self, line: str, ranks: Iterable[int]) -> None:
        asked = list(ranks)
        for rank in asked:
            self._send(rank, line)
        self._expect_ok(asked)

    def _expect_ok(self, ranks: Iterable[int]) -> None:
        assert {(rank, answer) for rank in ranks if (answer := self._answer(rank)) != "ok"} == set()

    def _send(self, rank: int, line: str) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()

    def _answer(self, rank: int) -> str:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        return pipe.readline().rstrip("\n")
