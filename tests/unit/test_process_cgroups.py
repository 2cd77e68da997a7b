"""What a process' control groups say."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from exporters.process import cgroups
from exporters.process.cgroups import (
    MAX_GROUPS,
    OomCount,
    OomKills,
    memory_files,
    oom_kills,
    oom_now,
    oomd_kills,
    unified_groups,
)

STEP = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def test_counters_of_both_versions(tmp_path: Path) -> None:
    """Version 1 counts a group's own kills in memory.oom_control, version 2 those below it too in memory.events."""
    base = tmp_path / "fs/cgroup"
    assert memory_files({"memory": "/job/0", "": "/x"}, tmp_path) == (f"{base}/memory/job/0/memory.oom_control",)
    assert memory_files({"": "/job/0"}, tmp_path) == (f"{base}/job/0/memory.events", f"{base}/job/memory.events")
    assert memory_files({"": "/"}, tmp_path) == (f"{base}/memory.events",)
    assert memory_files({}, tmp_path) == ()


def test_so_many_groups_are_looked_at(tmp_path: Path) -> None:
    """Of a deep tree the nearest groups count, MAX_GROUPS of them; a Slurm task's are all there."""
    deep = [f"g{number}" for number in range(MAX_GROUPS + 1)]
    found = unified_groups({"": "/" + "/".join(deep)}, tmp_path)
    assert [Path(each).name for each in found] == deep[::-1][:MAX_GROUPS]
    found = unified_groups({"": STEP}, tmp_path)
    assert [Path(each).name for each in found] == STEP[1:].split("/")[::-1]


@pytest.mark.parametrize(("text", "kills"), [
    ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", OomKills(3)),
    ("oom 1\noom_kill 3\noom_group_kill 2\n", OomKills(3, 2)),
    ("oom 1\noom_group_kill 2\n", None),
    ("oom_kill x\n", None),
    (f"oom_kill {'9' * 19}\n", None),
    ("", None),
])  # fmt: skip
def test_counts(tmp_path: Path, text: str, kills: OomKills | None) -> None:
    """Processes and whole groups that were killed are read; what has no plain number of processes tells nothing."""
    (tmp_path / "memory.events").write_text(text)
    assert oom_kills(str(tmp_path / "memory.events")) == kills
    assert oom_kills(str(tmp_path / "gone")) is None


class Oomd:
    """Directories as systemd-oomd marks them, without the rights that this takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attributes: dict[tuple[str, str], bytes] = {}
        self.status = SimpleNamespace(st_uid=0, st_mode=0o40755)
        monkeypatch.setattr(cgroups.os, "stat", lambda _path, **_: self.status)
        monkeypatch.setattr(cgroups.os, "getxattr", self.getxattr)

    def getxattr(self, path: str, name: str, **_: bool) -> bytes:
        if (path, name) not in self.attributes:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self.attributes[path, name]


@pytest.fixture
def oomd(monkeypatch: pytest.MonkeyPatch) -> Oomd:
    """Directories without a mark."""
    return Oomd(monkeypatch)


@pytest.mark.parametrize("name", ["user.oomd_ooms", "user.oomd_kill"])
def test_systemd_oomd(oomd: Oomd, name: str) -> None:
    """A group that systemd-oomd killed since the rank was found is told by either of its marks."""
    assert oomd_kills("/job") == 0
    before = OomCount(oomd=(("/job", 0), ("/above", 2)))
    assert not oom_now(before).by_oomd
    oomd.attributes["/above", name] = b"2"
    assert not oom_now(before).by_oomd
    oomd.attributes["/above", name] = b"3"
    assert oom_now(before).by_oomd


@pytest.mark.parametrize(("uid", "mode", "mark", "kills"), [
    (0, 0o40755, b"1", 1), (0, 0o40755, b"9" * 18, int("9" * 18)), (0, 0o40755, b"9" * 19, 0), (0, 0o40755, b"many", 0),
    (1000, 0o40755, b"1", None), (0, 0o40775, b"1", None), (0, 0o40757, b"1", None),
])  # fmt: skip
def test_only_root_may_mark(oomd: Oomd, uid: int, mode: int, mark: bytes, kills: int | None) -> None:
    """A mark on a group that another than root may write to is none, nor is one that is no number."""
    oomd.status = SimpleNamespace(st_uid=uid, st_mode=mode)
    oomd.attributes["/job", "user.oomd_kill"] = mark
    assert oomd_kills("/job") == kills
