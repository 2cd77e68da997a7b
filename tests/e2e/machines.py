"""Machines for tests of liveness: with a kernel that reports exit statuses, with a kernel that does not, and a node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents import Agent
from jobs import SimulatedJob
from nodes import Node


class Machine:
    """A machine for one test, with its own job id; ``directory`` is the test's.

    ``ioctl`` False: the agent must work without PIDFD_GET_INFO."""

    def __init__(self, directory: Path, *, ioctl: bool = True, node: Node | None = None) -> None:
        self.job_id = uuid.uuid4().hex[:12]
        self.directory = directory
        self.ioctl = ioctl
        self.node = node

    def job(self, *options: str, name: str = "job", **more: Any) -> SimulatedJob:
        """Start a job with this machine's job id."""
        named = ("--scheduler", "slurm", "--job-id", self.job_id, *options)
        return SimulatedJob(self.directory / name, *named, node=self.node, **more)

    def agent(
        self, *jobs: SimulatedJob, dump_dir: Path | None = None, exporters: Mapping[str, Any] | None = None, **more: Any
    ) -> Agent:
        """Start an agent that reads the files of ``jobs``, or of a later job in ``dump_dir``.

        ``exporters``: more sections of the configuration."""
        paths = [str(job.dump_dir) for job in jobs] or [str(dump_dir or self.directory / "nothing")]
        sections = {"inspector": {"paths": paths, "derived_series": True}, "process": {"exit_status_ioctl": self.ioctl}}
        whole = sections | dict(exporters or {})
        return Agent(self.directory, {"exporters": whole}, job_id=self.job_id, node=self.node, **more)

    @contextlib.contextmanager
    def late_reaping(self, job: SimulatedJob) -> Iterator[None]:
        """If only zombies have exit statuses, delay the launcher's reaping in this context."""
        if not self.ioctl:
            job.signal_launcher(signal.SIGSTOP)
        try:
            yield
        finally:
            if not self.ioctl:
                job.signal_launcher(signal.SIGCONT)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program on the machine, with pipes."""
        start: Any = self.node.popen if self.node else subprocess.Popen
        process: subprocess.Popen[str] = start(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        return process

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process, by the machine's pid."""
        (self.node.kill if self.node else os.kill)(pid, number)


def alive(ranks: int) -> dict[str, str]:
    """Return the states of a job of ``ranks`` healthy ranks."""
    return {str(rank): "alive" for rank in range(ranks)}


def records(path: Path) -> list[dict[str, Any]]:
    """Return the complete records of an Inspector file."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
