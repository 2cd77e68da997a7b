"""Two actors of Ray in a group of gloo: `ray_actors.py PORT SESSION [named]`; prints their pids, then they reduce.

named: their processes get RANK and WORLD_SIZE as they start, else the actor's code sets them.
"""

from __future__ import annotations

import os
import sys

import ray
import torch
import torch.distributed as dist


@ray.remote
class Rank:
    """One rank."""

    def __init__(self, rank: int, port: str) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)

    def pid(self) -> int:
        """Join the group."""
        dist.init_process_group("gloo")
        return os.getpid()

    def work(self) -> None:
        """Reduce until a peer is gone."""
        while True:
            dist.all_reduce(torch.ones(1))


def options(rank: int) -> dict[str, object]:
    """Return what the process of a rank is started with."""
    variables = {"RANK": str(rank), "WORLD_SIZE": "2"}
    return {"runtime_env": {"env_vars": variables}} if sys.argv[3:] == ["named"] else {}


ray.init(num_cpus=2, include_dashboard=False, _temp_dir=sys.argv[2])
ranks = [Rank.options(**options(rank)).remote(rank, sys.argv[1]) for rank in range(2)]
print(*ray.get([rank.pid.remote() for rank in ranks]), flush=True)  # noqa: T201  # the test waits for it
ray.wait([rank.work.remote() for rank in ranks], num_returns=2)
