"""Lookups of user names never block a scan."""

import asyncio
import pwd
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_clock import FakeClock
from lent import lent, until
from proc_tree import ProcTree
from rank_table import RankTable

from agent.sdk.exporter import Logger, OwnThread, Roots
from exporters.process import ProcessConfig, ProcessExporter
from exporters.process.users import MAX_USERS, UserNames


class Directory:
    """A directory service that can hang."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.threads: set[str] = set()
        self.queries: list[int] = []

    def getpwuid(self, uid: int) -> object:
        self.threads.add(threading.current_thread().name)
        self.queries.append(uid)
        self.answers.wait()
        if uid == 404:
            raise KeyError(uid)
        if uid == 500:
            raise OSError(5, "the directory is down")
        return SimpleNamespace(pw_name=f"user{uid}")


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    """Provide a directory service that hangs until the test releases it."""
    made = Directory()
    monkeypatch.setattr(pwd, "getpwuid", made.getpwuid)
    yield made
    made.answers.set()


async def test_a_directory_that_hangs_delays_no_look(directory: Directory, tmp_path: Path) -> None:
    """While a name lookup hangs, ranks are found and shown with the uid; later the name replaces it."""
    proc, environ = await asyncio.to_thread(ProcTree, tmp_path / "proc"), {"RANK": "0", "SLURM_JOB_ID": "7"}
    await asyncio.to_thread(proc.add, 10, threads={11: "NCCL RAS"}, uid=4242, environment=environ)
    clock = FakeClock()
    ranks, exporter = RankTable(clock, "here"), ProcessExporter(ProcessConfig())
    await exporter.start(lent("process", clock, roots=Roots(proc=proc.root, sys=tmp_path), ranks=ranks))
    async with asyncio.timeout(20.0):
        await exporter.update()
        await exporter.update()
    clock.advance(1.0)
    ranks.tick()

    def user() -> str:
        [view] = ranks.snapshot().ranks
        return view.process.facts.user if view.process.facts else ""

    assert user() == "4242"
    directory.answers.set()
    await until(lambda: user() == "user4242")
    assert directory.threads == {"process-users"}
    await exporter.drain()


@pytest.mark.parametrize("uid", [404, 500])
async def test_a_uid_without_a_name(directory: Directory, uid: int) -> None:
    """A uid without a name is shown as a number and looked up again for the next process."""
    directory.answers.set()
    names = UserNames(OwnThread("users"), lambda *_: pytest.fail("it has no name"), Logger("process"))
    for times in (1, 2):
        assert names.name(uid) == str(uid)
        await names.settle()
        assert directory.queries == [uid] * times
    names.stop()


async def test_names_are_bounded(directory: Directory) -> None:
    """Above the limit of names the oldest is evicted; above the limit of lookups a uid gets no lookup."""
    names = UserNames(OwnThread("users"), lambda *_: None, Logger("process"))
    for uid in range(1000, 1000 + MAX_USERS + 1):
        names.name(uid)
    directory.answers.set()
    await until(lambda: len(directory.queries) == MAX_USERS and not names._lookups)
    assert len(names._names) == MAX_USERS
    names.name(9999)
    await names.settle()
    assert (names.name(9999), len(names._names), names.name(1000)) == ("user9999", MAX_USERS, "1000")
    names.stop()
