"""The evidence exporter while a dependency hangs, fails or is removed."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from client_metrics import samples
from evidence_site import Site
from rank_table import environment, owned

from agent.evidence import folder
from agent.ranks.rank.facts import Owner
from exporters.evidence import exporter as module, processes
from exporters.evidence.watch import Occasion


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Provide a site."""
    made = Site(tmp_path, seconds_per_bundle=1.0, keep_bundles=3)
    yield made
    made.close()


class Door:
    """Stands in for ``rank_files``: a read of the hanging process returns only after the test sets ``opened``."""

    def __init__(self, hanging_pid: int) -> None:
        self.opened = threading.Event()
        self.begun = threading.Event()
        self._hanging_pid = hanging_pid

    def __call__(self, _proc: Path, _cgroups: Path, rank: str, pid: int) -> dict[str, bytes]:
        if pid == self._hanging_pid:
            self.begun.set()
            self.opened.wait(60)
        return {f"ranks/{rank}/status": b"well"}


async def taken(site: Site, *jobs: str) -> None:
    """Take a bundle of each job, as after the death of a rank."""
    for job in jobs:
        site.exporter._wait_for(Occasion(job, "dead", "0"), f"user of {job}")
    await site.look(2)


def failures(site: Site) -> dict[str, float]:
    """Return the failures, keyed by part."""
    files = samples(site.exporter.families(site.exporter.snapshot()))
    return {entry.labels["part"]: entry.value for entry in files if entry.value}


async def test_a_first_exit_with_looks_that_take_long(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a first exit, files that were read in time stay, even if one read hangs and others are slow."""
    await site.start()
    door = Door(500)
    monkeypatch.setattr(processes, "rank_files", lambda *given: time.sleep(0.2) or door(*given))
    monkeypatch.setattr(module, "live_pids", lambda _views: {str(rank): 1 if rank else 500 for rank in range(20)})
    site.kill(1)
    try:
        await site.exporter.update()
    finally:
        door.opened.set()
    files = site.exporter._frozen["7"].files
    assert "ranks/1/status" in files
    assert b"rank 19, pid 1: no time left\n" in files[processes.UNREAD]


async def test_looks_that_hang_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of hanging reads (per user, and for all users) no read starts until a hanging read has returned."""
    await site.start()
    door = Door(500)
    monkeypatch.setattr(processes, "rank_files", door)
    monkeypatch.setattr(processes, "RANK_SECONDS", 0.05)
    look = partial(site.exporter._looks.look, Path("/proc"), Path("/"), seconds=60.0)
    try:
        hanging = dict.fromkeys(map(str, range(processes.MAX_PER_OWNER)), 500)
        files = await look("mal", hanging | {"late": 1})
        assert files[processes.UNREAD].endswith(
            b"rank late, pid 1: 2 reads of this owner's processes have not returned\n"
        )
        assert (await look("ann", {"1": 1}))["ranks/1/status"] == b"well"
        others = processes.MAX_THREADS // processes.MAX_PER_OWNER - 1
        await asyncio.gather(*(look(f"user {number}", hanging) for number in range(others)))
        with pytest.raises(RuntimeError, match="80 reads of processes have not returned"):
            await look("ann", {"1": 1})
    finally:
        door.opened.set()
    while len(site.exporter._looks._free) < processes.MAX_THREADS:
        await asyncio.sleep(0.01)
    assert (await look("mal", {"1": 1}))["ranks/1/status"] == b"well"


async def test_threads_that_do_not_start_use_no_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that fail to start, at the node's limit of tasks, do not count as hanging reads: later reads succeed."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await site.start()
    monkeypatch.setattr(processes, "rank_files", Door(0))
    look = partial(site.exporter._looks.look, Path("/proc"), Path("/"), "ann", {"1": 1}, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(processes.MAX_THREADS):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await look()
    assert "ranks/1/status" in await look()


def test_a_threads_name_makes_no_line_and_no_terminal_sequence(tmp_path: Path) -> None:
    """The name of a thread stays in its own line, without control characters."""
    task = tmp_path / "9/task/9"
    task.mkdir(parents=True)
    (task / "stat").write_text("9 (x) S " + " ".join(map(str, range(1, 30))))
    (task / "comm").write_bytes(b"a\n1\tb\x1b[2J\n")
    lines = processes.rank_files(tmp_path, tmp_path, "0", 9)["ranks/0/threads.tsv"].splitlines()
    assert [line.split(b"\t")[:3] for line in lines[1:]] == [[b"9", b"a 1 b [2J", b"S"]]


async def test_ranks_that_are_looked_at_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job with more ranks than MAX_RANKS, only the first MAX_RANKS are read."""
    await site.start()
    monkeypatch.setattr(processes, "rank_files", Door(0))
    pids = {str(pid): pid for pid in range(1, 67)}
    files = await site.exporter._looks.look(Path("/none"), Path("/"), "ann", pids, 60.0)
    assert len(files) == processes.MAX_RANKS


async def test_who_cannot_tell_of_stalls_costs_no_death_its_bundle(site: Site) -> None:
    """A death gets its bundle even if an exporter fails to list stalled jobs."""

    def broken() -> Mapping[str, float]:
        raise KeyError("comm")

    site.registry.of("ras").tell_stalls(broken)
    await site.start_and_kill(1)
    assert [entry.trigger for entry in await site.summaries()] == ["dead"]


async def test_a_bundle_that_is_written_late_is_there(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle is still written if its directory hangs longer than the bundle's time limit and then continues.

    Meanwhile the ranks are watched, and no further bundle is collected.
    """
    await site.start()
    gate, write = threading.Event(), module.bundle.write

    def late(*given: object) -> str:
        gate.wait(60)
        return write(*given)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(module.bundle, "write", late)
    site.exporter._wait_for(Occasion("7", "dead", "0"), "ann")
    await site.exporter._take_all()
    assert failures(site) == {"bundle": 1}
    site.kill(1)
    for job in ("8", "9"):
        site.exporter._wait_for(Occasion(job, "dead", "0"), "ann")
        await site.exporter.update()
    assert "7" in site.exporter._frozen and len(site.exporter._waiting) == 2
    gate.set()
    await site.look(1)
    assert len(await asyncio.to_thread(folder.bundles, site.folder)) == 3


async def test_a_misspelt_job_costs_no_bundle_its_place(site: Site) -> None:
    """A request for a job without ranks on this node is removed: it gives no bundle and evicts no bundle."""
    await site.start()
    await taken(site, "1", "2", "3")
    before = await asyncio.to_thread(folder.bundles, site.folder)
    await asyncio.to_thread(folder.request_bundle, site.folder, "no-such-job")
    await site.look(2)
    assert (await asyncio.to_thread(folder.bundles, site.folder), len(before)) == (before, site.config.keep_bundles)
    assert not await asyncio.to_thread(lambda: list(site.folder.glob("take-*")))


async def test_two_users_of_one_id_have_a_bundle_each(site: Site) -> None:
    """If two users have jobs with the same id, each job has its own bundle, with only its own ranks and environment."""
    await site.start()
    for user, uid in (("ben", 1001), ("cid", 1002)):
        for rank in range(2):
            known = {**environment(rank, 2, "77"), "NCCL_ALGO": f"of-{user}"}
            pid = 2**22 + 10 * uid + rank
            site.ranks.observe_process(owned(pid, known, Owner("user", str(uid)), uid=uid, user=user))
    await site.look(10)
    assert sorted({view.label.job_id for view in site.ranks.snapshot().ranks} - {"7"}) == ["77", "77-u1002"]
    for job, mine, other in (("77", b"ben", b"cid"), ("77-u1002", b"cid", b"ben")):
        await taken(site, job)
        members = await site.members()
        assert members["ranks.json"].count(b"of-" + mine) == 2
        assert not [name for name, data in members.items() if other in data]
    assert [entry.user for entry in await site.summaries()] == ["ben", "cid"]
