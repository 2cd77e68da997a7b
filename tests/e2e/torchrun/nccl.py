"""NVIDIA's libnccl.so.2 in a rank of torchrun: its RAS runs for a communicator of all ranks (see ../rasrank)."""

from __future__ import annotations

import ctypes
import os
import threading

import torch
import torch.distributed as dist

WORLD_HASH = 0x1234567890ABCDEF
DESCRIPTION_BYTES = 4096  # Longer than a rank's description


def run_ras(program: str, library: str, layout: str) -> None:
    """Load ``library`` and join all ranks; ``program``: rasrank.c built as a library; it uses stdin and stdout."""
    pipes = os.pipe(), os.pipe()
    (commands, tell), (answers, says) = pipes
    os.dup2(commands, 0)
    os.dup2(says, 1)
    words = [b"rasrank", library.encode(), layout.encode(), b"127.0.0.1"]
    arguments = len(words), (ctypes.c_char_p * (len(words) + 1))(*words)
    threading.Thread(target=ctypes.CDLL(program).main, args=arguments, daemon=True).start()
    answer = open(answers)  # noqa: SIM115
    answer.readline()  # its pid
    rank, size = dist.get_rank(), dist.get_world_size()
    os.write(tell, f"join world {WORLD_HASH:x} {size} {rank} {rank}\n".encode())
    own = torch.tensor(list(answer.readline().strip().encode().ljust(DESCRIPTION_BYTES)), dtype=torch.uint8)
    descriptions = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(descriptions, own)  # not all_gather_object, which needs numpy
    os.write(tell, b"meet world %b\n" % b"".join(bytes(one.tolist()).strip() for one in descriptions))
    if answer.readline() != "ok\n":
        raise RuntimeError("RAS does not run")
