"""The description of a simulated job, for a launcher and its rank processes. Imports only the standard library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

SHARED = (
    "ranks", "hosts", "tp", "seed", "job_id", "records_per_second", "steps", "recreate_every_steps",
    "straggler", "straggler_delay_us", "slow_link", "slow_link_factor",
)  # fmt: skip
"""Fields that must be equal on all hosts of a job."""


class Job(NamedTuple):
    """A job, as one launcher sees it. All launchers of a job have equal SHARED fields.

    Ranks are global ranks. ``steps`` 0 and ``duration_seconds`` 0 mean: until stopped. Times of accidents are relative
    to the moment when all ranks of the job are initialised. All hosts share ``job_dir``, but not necessarily
    ``dump_dir``.
    """

    job_dir: str
    dump_dir: str
    ranks: int
    hosts: int = 1
    host_index: int = 0
    tp: int = 1
    seed: int = 0
    job_id: str = "4711"
    records_per_second: float = 50.0
    steps: int = 0
    duration_seconds: float = 0.0
    dump_interval_us: int = 100_000
    flush_at_end: bool = False
    straggler: int | None = None
    straggler_delay_us: float = 2000.0
    slow_link: int | None = None
    slow_link_factor: float = 3.0
    stuck: int | None = None
    stuck_at_step: int = 0
    recreate_every_steps: int = 0
    recreate_seconds: float = 2.0
    exit_ranks: tuple[int, ...] = ()
    exit_code: int = 1
    exit_at_seconds: float = 0.0
    slow_sigterm_ranks: tuple[int, ...] = ()
    slow_sigterm_seconds: float = 5.0
    kill_ranks: tuple[int, ...] = ()
    kill_at_seconds: float = 0.0
    kill_signal: str = "KILL"
    teardown: str = "none"
    grace_seconds: float = 30.0
    dataloaders: int = 1
    ranks_per_process: int = 1
    scheduler: str = "none"
    rank_environment: bool = True
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    @property
    def ranks_per_host(self) -> int:
        """Return the number of ranks per host."""
        return self.ranks // self.hosts

    def processes(self) -> list[tuple[int, ...]]:
        """Return the ranks of each process of this host."""
        first = self.host_index * self.ranks_per_host
        return [
            tuple(range(start, start + self.ranks_per_process))
            for start in range(first, first + self.ranks_per_host, self.ranks_per_process)
        ]

    def file(self) -> Path:
        """Return the path of the launcher's job file for its ranks."""
        return Path(self.job_dir) / f"job-{self.host_index}.json"

    def end_marker(self) -> Path:
        """Return the path of the file that makes the data loaders of this host exit."""
        return Path(self.job_dir) / f"end-{self.host_index}"

    def difference(self, other: Job) -> str | None:
        """Return a field that must be equal in ``other`` and is not, or None."""
        return next((name for name in SHARED if getattr(self, name) != getattr(other, name)), None)

    def encode(self) -> str:
        """Return the job as JSON text."""
        return json.dumps(self._asdict())


def decode(text: str) -> Job:
    """Return the job from the text of :meth:`Job.encode`."""
    fields: dict[str, Any] = json.loads(text)
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Job(**fields)
