"""Two Ray actors for each gloo group: `ray_actors.py SESSION GROUP...`; prints their pids before they reduce.

GROUP: PORT[,NAME=VALUE...]. With variables, the processes of a group start with them and with RANK and WORLD_SIZE;
otherwise the actor's code sets RANK and WORLD_SIZE. They reduce until the file END exists. The program ends with the
last group."""

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
        """Reduce until the end, or until a peer has exited."""
        over = torch.zeros(1)
        while not over:
            over.fill_(os.path.exists(os.environ.get("END", "")))
            dist.all_reduce(over)


def started(rank: int, port: str, *variables: str) -> ray.actor.ActorHandle:
    """Start a rank."""
    named = {**dict(variable.split("=", 1) for variable in variables), "RANK": str(rank), "WORLD_SIZE": "2"}
    return Rank.options(runtime_env={"env_vars": named} if variables else {}).remote(rank, port)


ray.init(num_cpus=2 * len(sys.argv[2:]), include_dashboard=False, _temp_dir=sys.argv[1])
ranks = [started(rank, *group.split(",")) for group in sys.argv[2:] for rank in range(2)]
print(*ray.get([rank.pid.remote() for rank in ranks]), flush=True)  # noqa: T201  # the test waits for it
ray.wait([rank.work.remote() for rank in ranks][-2:], num_returns=2)
