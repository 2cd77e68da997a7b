"""A fake node and its scanner."""

from pathlib import Path
from typing import Any

from proc_tree import ProcTree

from agent.ranks.rank.environment import KEPT_VARIABLES
from agent.sdk.exporter import FailureCounter, Logger, Roots
from agent.sdk.ranks import ProcessKey, WriterKey
from exporters.process.scan import Scanner, ScanRequest, ScanResult

NCCL_MAPS = "7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/x86_64-linux-gnu/libnccl.so.2.30.7\n"
GPU = {9: Path("/dev/nvidia0")}


class Node:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.proc = ProcTree(path / "proc")
        self.sys = path / "sys"
        self.now = 1000.0
        self.known: list[ProcessKey] = []
        self.refused: list[ProcessKey] = []
        self.file_uid: int | None = None
        self.variables = KEPT_VARIABLES
        self.without_nccl = False
        self.failures = FailureCounter(Logger("process"))
        self.roots = Roots(proc=self.proc.root, sys=self.sys)
        self.scanner = Scanner(self.roots, self.failures)

    def add_rank(self, pid: int, **state: Any) -> None:
        """Add or change a process with a thread of NCCL's."""
        self.proc.add(pid, threads={100_000 + pid: "NCCL RAS"}, **state)

    def look(self, *writer_keys: WriterKey, after: float = 1.0) -> ScanResult:
        self.now += after
        known, refused, writers = tuple(self.known), frozenset(self.refused), dict.fromkeys(writer_keys, self.file_uid)
        request = ScanRequest(self.now, known, refused, writers, self.variables, self.without_nccl)
        scan = self.scanner.look(request)
        self.known = [key for key in [*self.known, *(facts.key for facts in scan.new)] if key not in scan.gone]
        return scan

    def evidence(self, *writer_keys: WriterKey, after: float = 1.0) -> dict[int, str]:
        return {facts.key.pid: facts.evidence for facts in self.look(*writer_keys, after=after).new}

    def log(self, pid: int, host: str = "h") -> tuple[Path, WriterKey]:
        path = self.path / f"{host}-pid{pid}.log"
        path.touch()
        info = path.stat()
        return path, WriterKey(info.st_dev, info.st_ino, 0, host, pid)
