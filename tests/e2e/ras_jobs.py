"""A job whose ranks run nothing but RAS, NVIDIA's own, without a GPU; see rasrank/README.md."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from jobs import ROOT

VERSION = "2.32.3"
LIBRARY = ROOT / ".cache" / "nccl" / VERSION / "libnccl.so.2"
_SOURCE = Path(__file__).with_name("rasrank")


def why_no_ras() -> str | None:
    """Return why RAS cannot run here, None when it can."""
    if platform.machine() != "x86_64":
        return "no layout of libnccl for this machine"
    if shutil.which("cc") is None:
        return "no C compiler found"
    return None if LIBRARY.exists() else "no libnccl in .cache/nccl: scripts/test fetches it"


class RasJob:
    """``ranks`` processes, one rank each, all serving RAS at ``port`` of the loopback, in one world communicator.

    Rank r is on the made-up node 127.0.BASE.(2 + r / ``ranks_per_node``), GPU r modulo that. ``env`` is added to their
    environment. ``directory`` takes the program and the library's log. A context manager; ``close`` ends them all.
    """

    def __init__(
        self,
        directory: Path,
        ranks: int,
        port: int,
        *,
        ranks_per_node: int = 4,
        base: int = 77,
        env: Mapping[str, str] | None = None,
        job_id: str = "4711",
    ) -> None:
        self.port = port
        self.job_id = job_id
        self._ranks_per_node = ranks_per_node
        program = directory / "rasrank"
        if not program.exists():
            subprocess.run(["cc", "-O1", "-o", program, _SOURCE / "rasrank.c", "-ldl"], check=True)
        self.hosts = [f"127.0.{base}.{2 + rank // ranks_per_node}" for rank in range(ranks)]
        self._log = (directory / f"rasrank-{job_id}.log").open("wb")
        self.processes: list[subprocess.Popen[str]] = []
        self._children: list[int] = []
        try:
            for rank in range(ranks):
                environment = {
                    **os.environ,
                    "NCCL_RAS_ADDR": f"127.0.0.1:{port}",
                    "NCCL_SET_THREAD_NAME": "1",
                    "SLURM_JOB_ID": job_id,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    **(env or {}),
                }
                argv = [program, LIBRARY, _SOURCE / f"{VERSION}.layout", self.hosts[rank]]
                self.processes.append(
                    subprocess.Popen(
                        argv,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._log,
                        text=True,
                        env=environment,
                    )
                )
            for process in self.processes:
                assert self._answer(process) == "ready"
            self.communicator("world", 0x1234567890ABCDEF, range(ranks))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RasJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def communicator(self, name: str, hash_number: int, ranks: Sequence[int]) -> None:
        """Make a communicator of these ranks, in this order."""
        for comm_rank, rank in enumerate(ranks):
            gpu = rank % self._ranks_per_node
            self._send(rank, f"join {name} {hash_number:x} {len(ranks)} {comm_rank} {gpu}")
        descriptions = [self._answer(self.processes[rank]) for rank in ranks]
        for rank in ranks:
            self._send(rank, f"meet {name} {''.join(descriptions)}")
        for rank in ranks:
            assert self._answer(self.processes[rank]) == "ok"

    def leave(self, rank: int, name: str) -> None:
        """Have one rank destroy a communicator."""
        self._send(rank, f"leave {name}")
        assert self._answer(self.processes[rank]) == "ok"

    def fork(self, rank: int) -> int:
        """Have one rank make a child, which holds all that it has open; return its pid."""
        self._send(rank, "fork")
        child = int(self._answer(self.processes[rank]))
        self._children.append(child)
        return child

    def signal(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank's process."""
        self.processes[rank].send_signal(number)

    def close(self) -> None:
        """End every process."""
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # what it was told last, it never read
                process.stdin.close()
        self._log.close()

    def _send(self, rank: int, line: str) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().rstrip("\n")
