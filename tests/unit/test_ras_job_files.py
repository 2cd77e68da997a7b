"""Files that jobs name are opened as the job sees them, and cost nobody else anything."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from fake_clock import FakeClock

from agent.helper.by_user import ByUser
from agent.helper.client import Helpers
from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.ranks import ProcessKey
from agent.system import inside
from agent.system.inside import MAX_LINKS, MAX_NAMES, MAX_PATH_BYTES, open_inside
from exporters.ras.local import job_files
from exporters.ras.local.job_files import FileFacts, FileRequest, read_files
from exporters.ras.local.listeners import ListenerSearch
from exporters.ras.query import runner as files
from exporters.ras.query.runner import FILE_READER, JobFiles

SETTING = "NCCL_RAS_TIMEOUT_FACTOR=7\n"
FOUND = FileFacts({"NCCL_RAS_TIMEOUT_FACTOR": "7"}, None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A process' root directory, with a file, beside which lies another that is not the job's."""
    root = tmp_path / "proc/10/root"
    (root / "etc/deep").mkdir(parents=True)
    (root / "etc/nccl.conf").write_text(SETTING)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/nccl.conf").write_text("not the job's")
    return root


def text_of(root: Path, path: str) -> str:
    """What the file says; the name of the error where it cannot be opened."""
    try:
        fd = open_inside(str(root), path)
    except OSError as error:
        return type(error).__name__
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


def test_links_lead_nowhere_but_below_the_root(root: Path) -> None:
    """Absolute links and any number of .. are the job's, in a directory on the way as well as in the last name."""
    outside = root.parents[2] / "outside"
    for name, target in {"dir": outside, "up": "../../../outside", "file": outside / "nccl.conf"}.items():
        (root / name).symlink_to(target)
    for path in ("/dir/nccl.conf", "/up/nccl.conf", "/file", "/../../../outside/nccl.conf"):
        assert text_of(root, path) == "FileNotFoundError"
    (root / "own").symlink_to("/etc")
    (root / "etc/deep/conf").symlink_to("../nccl.conf")
    for path in ("/own/nccl.conf", "/own/deep/conf", "/../etc//./deep/../nccl.conf", "/own/deep/../../etc/nccl.conf"):
        assert text_of(root, path) == SETTING


def test_nothing_but_a_regular_file_is_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a directory, a socket's place are not opened at all; a name below a file is none."""
    os.mkfifo(root / "fifo")
    opened = []
    monkeypatch.setattr(inside, "open_regular", lambda fd: opened.append(fd) or inside_regular(fd))
    assert [text_of(root, path) for path in ("/fifo", "/etc", "/", "/etc/nccl.conf/x")] == ["OSError"] * 3 + [
        "NotADirectoryError"
    ]
    assert len(opened) == 3


inside_regular = inside.open_regular


def test_a_way_ends_at_its_bounds(root: Path) -> None:
    """So many links, directories and bytes are followed, and not one more; no descriptor is left."""
    before = len(os.listdir("/proc/self/fd"))
    (root / "l0").symlink_to("etc/nccl.conf")
    for number in range(1, MAX_LINKS + 1):
        (root / f"l{number}").symlink_to(f"l{number - 1}")
    assert (text_of(root, f"/l{MAX_LINKS - 1}"), text_of(root, f"/l{MAX_LINKS}")) == (SETTING, "OSError")
    place = root
    for _ in range(MAX_NAMES - 1):
        place /= "d"
    place.mkdir(parents=True)
    (place / "f").write_text(SETTING)
    assert text_of(root, "/d" * (MAX_NAMES - 1) + "/f") == SETTING
    (place / "d").mkdir()
    (place / "d/f").write_text(SETTING)
    assert text_of(root, "/d" * MAX_NAMES + "/f") == "OSError"
    path = "/etc/nccl.conf"
    assert text_of(root, "/" * (MAX_PATH_BYTES - len(path)) + path) == SETTING
    assert text_of(root, "/" * (MAX_PATH_BYTES - len(path) + 1) + path) == "OSError"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_kernels_is_not_read(root: Path) -> None:
    """One that says it is empty may have effects when it is read: kmsg takes messages from others."""
    proc = str(root.parents[1])
    (root / "empty").write_text("")
    os.truncate(root / "empty", 0)
    assert job_files.read_one(FileRequest(proc, 10, 0, ("/empty",))) == FileFacts({}, None)
    assert job_files.read_one(FileRequest(proc, 10, 0, ("/etc/nccl.conf",))) == FOUND


def test_a_file_system_that_hangs_costs_its_user_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered meanwhile."""
    gate = threading.Event()

    def read_or_hang(request: FileRequest) -> FileFacts:
        if request.uid:
            gate.wait()
        return job_files.read_one(request)

    monkeypatch.setattr(job_files, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(job_files, "_readers", ByUser(read_or_hang))
    both = [FileRequest(str(root.parents[1]), 10, uid, ("/etc/nccl.conf",)) for uid in (100, 0)]
    assert read_files(both, b"") == [None, FOUND]
    gate.set()


class Wanting(ListenerSearch):
    """Wants these files, and notes what it is told."""

    def __init__(self, wanted: dict[ProcessKey, FileRequest]) -> None:
        self.wants = wanted
        self.told: dict[ProcessKey, FileFacts] = {}

    def wanted(self) -> dict[ProcessKey, FileRequest]:
        return {key: request for key, request in self.wants.items() if key not in self.told}

    def note(self, _asked: object, found: object) -> None:
        self.told.update(found)  # type: ignore[call-overload]


async def test_files_are_read_in_a_helper(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request more than the bound waits for the next time; a helper that fails is asked again."""
    monkeypatch.setattr(files, "MAX_REQUESTS", 2)
    helper, thread = Helpers(FakeClock()).lend(FILE_READER), OwnThread("ras")
    request = FileRequest(str(root.parents[1]), 10, 0, ("/etc/nccl.conf",))
    search = Wanting({ProcessKey(pid, 1): request for pid in (1, 2, 3)})
    reader = JobFiles(helper, thread, Logger("ras"))
    for expected in (2, 3):
        assert await reader.read_for(search)
        assert search.told == {ProcessKey(pid, 1): FOUND for pid in range(1, expected + 1)}
    assert not await reader.read_for(search)
    search.told.clear()
    process = helper._process
    assert process is not None
    process.kill()
    async with asyncio.timeout(10.0):
        while not await reader.read_for(search):
            pass
    await helper.stop()
    thread.stop()
