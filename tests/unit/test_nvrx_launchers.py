"""What launchers are asked for on their command lines, and which process above a rank is its launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc_tree import ProcTree
from test_nvrx_exporter import ME, Node

from agent.sdk.exporter import Guard, Logger, NoData
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from agent.system import procfs
from exporters.nvrx import exporter
from exporters.nvrx.launchers import MAX_ANCESTORS, Launchers, StartedRank
from exporters.nvrx.options import MAX_PROGRAM_WORDS, LauncherOptions, read_options

TORCHRUN = LauncherOptions("torchrun", 1, "1", "", "any-failed", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python3 /usr/bin/torchrun train.py", TORCHRUN),
        (
            "/usr/bin/python3 -u /opt/venv/bin/ft_launcher --nnodes=2:4 --nproc-per-node=8 --max-restarts=3 "
            "--ft-restart-policy=min-healthy --ft-segment 2 train.py",
            LauncherOptions("ft_launcher", 2, "4", "3", "min-healthy", "2"),
        ),
        (
            "python -m nvidia_resiliency_ext.fault_tolerance.launcher --nnodes 8 --max_restarts 10 --ft_segment=4 x.py",
            LauncherOptions("ft_launcher", 8, "8", "10", "any-failed", "4"),
        ),
        (
            "python -m torch.distributed.run --standalone --nnodes=3 -m pkg.train --nnodes=9 --max-restarts=9",
            LauncherOptions("torchrun", 3, "3", "", "any-failed", ""),
        ),
        (
            "torchrun --rdzv-conf token=secret --nnodes 2:3 --nnodes 4:5 train.py",
            LauncherOptions("torchrun", 4, "5", "", "any-failed", ""),
        ),
        (
            "torchrun --nnodes=many --max-restarts=-1 --ft-restart-policy=secret --ft-segment=1234567 train.py",
            LauncherOptions("torchrun", None, "", "", "", ""),
        ),
        ("torchrun --nnodes=123456 x.py", LauncherOptions("torchrun", 123456, "123456", "", "any-failed", "")),
        ("torchrun --nnodes=1234567 x.py", LauncherOptions("torchrun", None, "", "", "any-failed", "")),
        ("torchrun --nnodes", TORCHRUN),
        ("python train.py torch.distributed.run", None),
        ("bash -c torchrun-wrapper", None),
        ("", None),
        (" ".join(["nice"] * (MAX_PROGRAM_WORDS - 1)) + " torchrun x.py", TORCHRUN),
        (" ".join(["nice"] * MAX_PROGRAM_WORDS) + " torchrun x.py", None),
    ],
)
def test_options(line: str, expected: LauncherOptions | None) -> None:
    """Options before the script are read in both spellings, the last one counts, and what is no such value is empty."""
    assert read_options(line.split()) == expected


def test_nodes_by_the_environment() -> None:
    """The environment says how many nodes where the command line does not."""
    asked = read_options(["torchrun", "x.py"], "2:4")
    assert asked is not None
    assert (asked.minimum, asked.maximum) == (2, "4")
    asked = read_options(["torchrun", "--nnodes=1", "x.py"], "2:4")
    assert asked is not None
    assert (asked.minimum, asked.maximum) == (1, "1")


def test_words_of_a_command_line(tmp_path: Path) -> None:
    """Words are as they were given, blanks in them too; one that the bound cuts is left out."""
    tree = ProcTree(tmp_path)
    tree.add(10)
    path = tmp_path / "10/cmdline"
    path.write_bytes(b"torchrun\0a b\0\0x\0")
    assert ProcFS(tmp_path).arguments(10) == ["torchrun", "a b", "", "x"]
    path.write_bytes(b"torchrun\0" + b"x" * (procfs.MAX_ARGUMENTS_BYTES - 10) + b"\0")
    assert len(ProcFS(tmp_path).arguments(10)) == 2
    path.write_bytes(b"torchrun\0" + b"x" * (procfs.MAX_ARGUMENTS_BYTES - 9) + b"\0")
    assert ProcFS(tmp_path).arguments(10) == ["torchrun"]
    assert ProcFS(tmp_path).arguments(11) == []


def rank(pid: int, uid: int = 7) -> dict[str, StartedRank]:
    """The rank that stands for job 4711."""
    return {"4711": StartedRank(ProcessKey(pid, 5000), uid, "")}


def launchers_of(proc: Path) -> Launchers:
    """The launchers of a made-up /proc."""
    return Launchers(ProcFS(proc), Guard(Logger("nvrx")))


def test_the_launcher_is_above_the_rank(tmp_path: Path) -> None:
    """The nearest launcher above a rank counts, behind shells, up to a bound, and of the rank's own user only."""
    tree = ProcTree(tmp_path)
    tree.add(30, uid=7, title="torchrun --nnodes=2 a.py")
    tree.add(31, uid=7, parent=30, title="torchrun --nnodes=3 b.py")
    for pid in range(32, 32 + MAX_ANCESTORS):
        tree.add(pid, uid=7, parent=pid - 1, title="bash run.sh")
    last = 31 + MAX_ANCESTORS
    asked = launchers_of(tmp_path).look(rank(last))
    assert asked["4711"].minimum == 3
    tree.add(last + 1, uid=7, parent=last)
    assert launchers_of(tmp_path).look(rank(last + 1)) == {}
    tree.add(33, uid=8, parent=32, title="sudo x")
    assert launchers_of(tmp_path).look(rank(last)) == {}
    assert launchers_of(tmp_path).look(rank(99)) == {}


def test_a_launcher_is_looked_for_once_a_rank(tmp_path: Path) -> None:
    """What was found holds for the rank that it was found by, and is forgotten with its job."""
    tree = ProcTree(tmp_path)
    tree.add(30, uid=7, title="torchrun --nnodes=2 a.py")
    tree.add(31, uid=7, parent=30)
    launchers = launchers_of(tmp_path)
    launchers.look(rank(31))
    tree.add(30, uid=7, title="torchrun --nnodes=5 a.py")
    assert launchers.look(rank(31))["4711"].minimum == 2
    tree.add(32, uid=7, parent=30)
    assert launchers.look(rank(32))["4711"].minimum == 5
    assert launchers.look({}) == {}


def test_launcher_of_a_job(tmp_path: Path) -> None:
    """A job under a launcher shows what that was asked for and the node's number, without files and a helper."""
    node = Node(tmp_path)
    node.start()
    node.add_rank(10, **{"FT_LAUNCHER_IPC_SOCKET": "/tmp/x.socket", "GROUP_RANK": "3", exporter.LINK: ""})
    node.proc.add(9, uid=ME, title="python3 /usr/bin/ft_launcher --nnodes=2:4 --max-restarts=5 train.py")
    node.proc.add(10, uid=ME, parent=9)
    assert node.look() == {
        "nvrx_launcher_info/4711/ft_launcher/4/5/any-failed/": 1.0,
        "nvrx_minimum_nodes/4711": 2.0,
        "nvrx_group_rank_info/4711/3": 1.0,
    }
    assert not any(helper.calls for helper in node.helpers.all())
    node.end()


def test_ranks_of_other_launchers_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ranks whose environment is NVRx's lead to a launcher: a node of plain torchrun has no series more."""
    monkeypatch.setattr(exporter, "MARKS", frozenset({"FT_LAUNCHER_IPC_SOCKET"}))
    node = Node(tmp_path)
    node.start()
    node.add_rank(10, **{"GROUP_RANK": "3", exporter.LINK: ""})
    node.proc.add(9, uid=ME, title="torchrun train.py")
    node.proc.add(10, uid=ME, parent=9)
    with pytest.raises(NoData):
        node.look()
    node.end()


def test_numbers_of_a_node_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many numbers of a node in a job are shown, and what is none, or has a digit too many, is not."""
    monkeypatch.setattr(exporter, "MAX_GROUP_RANKS", 4)
    node = Node(tmp_path)
    node.start()
    node.add_rank(9, 0, GROUP_RANK="x")
    node.add_rank(10, 1, GROUP_RANK="1234567")
    for number in range(exporter.MAX_GROUP_RANKS + 1):
        node.add_rank(20 + number, 2 + number, GROUP_RANK=f"0{number}")
    found = [name for name in node.look() if name.startswith("nvrx_group_rank_info/")]
    assert found == [f"nvrx_group_rank_info/4711/{number}" for number in range(exporter.MAX_GROUP_RANKS)]
    node.end()
