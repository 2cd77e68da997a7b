"""NVRx: the launcher above a rank, and the options on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc_tree import ProcTree
from test_nvrx_exporter import ME, Node

from agent.sdk.exporter import NoData
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.nvrx.exporter import LINK
from exporters.nvrx.launchers import MAX_ANCESTORS, MAX_PROGRAM_WORDS, JobLauncher, launcher_above, read_command

OPTIONS: dict[str, JobLauncher | None] = {
    "python3 /usr/bin/torchrun train.py": JobLauncher("torchrun"),
    "python3 -u /opt/bin/ft_launcher --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 --ft-restart-policy=min-healthy "
    "--ft-segment 2 train.py": JobLauncher("ft_launcher", "2", "4", "3", "min-healthy", "2"),
    "python -m nvidia_resiliency_ext.fault_tolerance.launcher --nnodes 8 --max_restarts 10 "
    "--ft_restart_policy=any-failed x.py": JobLauncher("ft_launcher", "8", "8", "10", "any-failed"),
    "python -m torch.distributed.run --standalone --nnodes=3 -m pkg.train --nnodes=9": JobLauncher(
        "torchrun", "3", "3"
    ),
    "torchrun --rdzv-conf token=secret --nnodes 2:3 --nnodes 4:5 train.py": JobLauncher("torchrun", "4", "5"),
    "torchrun --nnodes=many --max-restarts=-1 --ft-restart-policy=secret --ft-segment=1234567": JobLauncher("torchrun"),
    "torchrun --nnodes=123456 x.py": JobLauncher("torchrun", "123456", "123456"),
    "torchrun --nnodes=1234567 x.py": JobLauncher("torchrun"),
    "torchrun --nnodes": JobLauncher("torchrun"),
    "python train.py torch.distributed.run": None,
    "python -m pkg.torchrun": None,
    "bash -c torchrun-wrapper": None,
    "": None,
    "nice " * (MAX_PROGRAM_WORDS - 1) + "torchrun x.py": JobLauncher("torchrun"),
    "nice " * MAX_PROGRAM_WORDS + "torchrun x.py": None,
}


def test_options() -> None:
    """Options are read up to the script, in both spellings; the last one wins; an invalid value is empty."""
    for line, expected in OPTIONS.items():
        assert read_command(line.split()) == expected, line


def test_the_nearest_launcher_of_the_same_user(tmp_path: Path) -> None:
    """Launchers are searched up to MAX_ANCESTORS above a rank, or to another user's process; an ended rank has none."""
    tree = ProcTree(tmp_path)
    tree.add(29, uid=7, title="torchrun --nnodes=9 a.py")
    tree.add(30, uid=7, parent=29, title="torchrun --nnodes=2 a.py")
    last = 30 + MAX_ANCESTORS
    for pid in range(31, last + 2):
        tree.add(pid, uid=7, parent=pid - 1, title="bash -c x")

    def above(pid: int, start: int = 5000) -> JobLauncher | None:
        return launcher_above(ProcFS(tmp_path), ProcessKey(pid, start), 7)

    assert above(last) == JobLauncher("torchrun", "2", "2")
    assert above(last + 1) is None
    assert above(last, start=1) is None
    assert above(99) is None
    tree.add(33, uid=8, parent=32, title="sudo x")
    assert above(last) is None


def test_launcher_of_a_job(tmp_path: Path) -> None:
    """An NVRx job shows its launcher without a file or a helper; a rank that NVRx did not start shows none."""
    node = Node(tmp_path)
    node.add_rank(10)
    node.proc.add(9, uid=ME, title="python3 /usr/bin/ft_launcher --nnodes=2:4 --max-restarts=5 train.py")
    node.proc.add(10, uid=ME, parent=9)
    assert node.look() == {"nvrx_launcher_info/4711/ft_launcher/2/4/5//": 1.0}
    node.end()
    node = Node(tmp_path / "other")
    node.proc.add(9, uid=ME, title="torchrun train.py")
    node.proc.add(10, uid=ME, parent=9)
    node.observe(10, 0, ME, {LINK + "X": "/x"}, job="4711")
    with pytest.raises(NoData):
        node.look()
    node.end()
