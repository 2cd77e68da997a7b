"""A rank under torchrun, in a gloo group: `reduce.py ORDERS reduces|waits`.

The file ORDERS/RANK says how the rank ends; once ORDERS/end exists all ranks return. Until then it reduces, or waits,
as in an NCCL collective that a peer has left. With RASRANK in its environment it also loads libnccl, and it opens the
device GPU."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from misbehaviour import misbehave
from nccl import run_ras
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    """Reduce or wait, then end."""
    orders, reduces = Path(sys.argv[1]), sys.argv[2] == "reduces"
    own = orders / os.environ["RANK"]
    dist.init_process_group("gloo")
    if rasrank := os.environ.get("RASRANK"):
        run_ras(*rasrank.split())
    if gpu := os.environ.get("GPU"):
        os.open(gpu, os.O_RDONLY)  # until its end
    while True:
        if own.exists():
            how = own.read_text()
            own.unlink()  # one order for one run of the rank
            misbehave(how)
        over = torch.tensor([int((orders / "end").exists())])
        if reduces:
            dist.all_reduce(over)
        if over:
            return
        time.sleep(0.1)


main()
