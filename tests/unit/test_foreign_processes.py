"""Foreign processes on a rank's GPU: which processes are foreign, and how many the exporter examines."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent
from proc_tree import ProcTree
from rank_table import RankTable

from agent.hardware.inventory import Hardware
from agent.sdk.exporter import Roots
from agent.sdk.hardware import Gpu
from agent.sdk.ranks import Owner
from agent.sdk.system import ProcFS
from exporters.process import ProcessConfig, ProcessExporter, foreign as gpu_users_module
from exporters.process.foreign import (
    INTERVAL_SECONDS,
    MAX_NEW,
    MAX_PROCESSES,
    MAX_USERS,
    GpuUser,
    OtherProcesses,
    foreign,
)
from exporters.process.ownership import MAX_ANCESTORS, OwnerSearch

RANK, OTHER_RANK, STRANGER = 10, 11, 20
ALICE, BOB, ROOT = 1000, 2000, 0
SLURM_7 = Owner("job", "slurm/7", scheduler="slurm", job_id="7", proof="cgroup")
SLURM_8 = Owner("job", "slurm/8", scheduler="slurm", job_id="8", proof="cgroup")
POD = Owner("pod", "c7a3f8b2")


def user_of(uid: int) -> Owner:
    """Return the owner of a process outside of pods, containers and jobs."""
    return Owner("user", str(uid))


def process(**known: Any) -> GpuUser:
    """Return a process of alice's, outside of any scheduler."""
    given: dict[str, Any] = {"name": "python3", "uid": ALICE, **known}
    return GpuUser(**{"owner": user_of(given["uid"]), **given})


def a_rank(job_id: str = "7", **known: Any) -> GpuUser:
    """Return a rank of alice's job."""
    return process(**{"job_ids": frozenset({job_id}), "session": 100, **known})


@pytest.mark.parametrize(("rank", "stranger", "counted"), [
    (a_rank(), process(uid=BOB, session=200), True),
    (a_rank(), process(session=200), True),  # alice's notebook
    (a_rank(), process(), True),
    (a_rank(), process(session=100), False),  # the launcher or a process that it started
    (a_rank(session=0), process(session=0), True),
    (a_rank(), process(session=200, ancestors=frozenset({1, RANK})), False),
    (a_rank(), process(session=200, ancestors=frozenset({1, 99})), True),
    (a_rank(owner=SLURM_7), process(owner=SLURM_7, session=200), False),
    (a_rank(owner=SLURM_7), process(owner=SLURM_8, session=200), True),
    (a_rank(owner=POD), process(owner=POD, uid=ROOT, session=200), False),
    (a_rank(owner=POD), process(owner=SLURM_7), True),
    (a_rank(), process(name="nvidia-cuda-mps", uid=ROOT), False),
    (a_rank(), process(name="nvidia-cuda-mps"), False),
    (a_rank(), process(name="nvidia-cuda-mps", uid=BOB), True),  # any program can have this name
    (a_rank(), process(name="nv-hostengine", uid=ROOT), True),  # it uses the GPU, because a person started a diagnosis
    (a_rank("7"), a_rank("7", uid=BOB, session=200), False),
    (a_rank("7"), a_rank("8", uid=BOB, session=200), True),
    (a_rank("7"), a_rank("8"), True),  # two jobs of one login session
    (a_rank("7-a", owner=SLURM_7), a_rank("7-b", owner=SLURM_7), False),  # replicas in one allocation
])  # fmt: skip
def test_who_is_foreign(rank: GpuUser, stranger: GpuUser, counted: bool) -> None:
    """A rank's descendants, processes of its job or session, and an MPS server of root or its user are not foreign."""
    counts = foreign({RANK: ["GPU-a"], STRANGER: ["GPU-a"]}, {RANK: rank, STRANGER: stranger})
    expected = {("GPU-a", stranger.uid, 1)} if counted else set()
    if counted and stranger.job_ids:  # each process is foreign to the other
        expected = {("GPU-a", rank.uid, 1), ("GPU-a", stranger.uid, 1)}
        if rank.uid == stranger.uid:
            expected = {("GPU-a", rank.uid, 2)}
    assert set(counts) == expected


def test_a_worker_of_another_rank() -> None:
    """A rank's descendant is not foreign on another GPU of the rank's job; on a GPU of another job it is foreign."""
    worker = process(session=300, ancestors=frozenset({RANK}))
    known = {RANK: a_rank("7"), OTHER_RANK: a_rank("7"), STRANGER: worker}
    assert foreign({RANK: ["GPU-a"], OTHER_RANK: ["GPU-b"], STRANGER: ["GPU-b"]}, known) == ()
    known[OTHER_RANK] = a_rank("8")
    assert foreign({OTHER_RANK: ["GPU-b"], STRANGER: ["GPU-b"]}, known) == (("GPU-b", ALICE, 1),)


def test_users_of_one_gpu_are_bounded() -> None:
    """The users with the most processes are named; users above the limit are one sum."""
    strangers = {100 + number: process(uid=5000 + number // 2) for number in range(2 * MAX_USERS)}
    more = {999: process(uid=9999), 998: process(uid=9998)}
    named = tuple(("GPU-a", 5000 + number, 2) for number in range(MAX_USERS))
    for known, others in ((strangers, ()), (strangers | more, (("GPU-a", None, 2),))):
        users = {pid: ["GPU-a"] for pid in (RANK, *known)}
        assert foreign(users, {RANK: a_rank(), **known}) == named + others


class Node:
    """A fake /proc, and the foreign processes in it."""

    def __init__(self, root: Path) -> None:
        self.proc = ProcTree(root / "proc")
        proc = ProcFS(self.proc.root)
        self.strangers = OtherProcesses(proc, OwnerSearch(Roots(self.proc.root, root / "sys"), proc))


def test_what_is_looked_at(tmp_path: Path) -> None:
    """User, session and at most MAX_ANCESTORS ancestors of a process are read; a process that has exited is skipped."""
    node = Node(tmp_path)
    for pid in range(2, MAX_ANCESTORS + 4):
        node.proc.add(pid, parent=pid - 1, uid=ALICE, session=7)
    last = MAX_ANCESTORS + 3
    node.proc.add(5000, state="Z")
    counts = node.strangers.look([4, last, 5000, 6000])
    assert (set(counts), counts[4].uid, counts[4].session, counts[4].ancestors) == ({4, last}, ALICE, 7, {2, 3})
    assert counts[last].ancestors == set(range(3, last))


def test_a_descendant_stays_one(tmp_path: Path) -> None:
    """A process stays a descendant after its ancestors exit; a new process with its pid is examined again."""
    node = Node(tmp_path)
    node.proc.add(RANK)
    for parent, start, ancestors in ((RANK, 5000, {RANK}), (1, 5000, {RANK}), (1, 5001, set())):
        node.proc.add(STRANGER, parent=parent, start=start)
        assert node.strangers.look([STRANGER])[STRANGER].ancestors == ancestors


def test_looks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MAX_NEW new processes are examined in one turn, and at most MAX_PROCESSES processes in all."""
    node, pids = Node(tmp_path), range(100, 100 + MAX_NEW + 1)
    for pid in pids:
        node.proc.add(pid)
    assert [len(node.strangers.look(pids)) for _ in range(2)] == [MAX_NEW, MAX_NEW + 1]
    monkeypatch.setattr(gpu_users_module, "MAX_PROCESSES", MAX_NEW + 1)
    node.proc.add(900)
    assert len(node.strangers.look([*pids, 900])) == MAX_NEW + 1
    assert MAX_PROCESSES > MAX_NEW


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    """Provide a rank, 4711, and a notebook of user daemon, 4800."""
    made = ProcTree(tmp_path / "proc")
    made.add(4711, threads={4712: "NCCL RAS"}, environment={"RANK": "0", "SLURM_JOB_ID": "7"}, session=4711)
    made.add(4800, uid=1, session=4800)
    return made


async def test_foreign_processes_are_shown(tmp_path: Path, proc: ProcTree) -> None:
    """A notebook on a rank's GPU is shown with its user; on a MIG GPU, or after its exit, it is not shown."""
    hardware, clock = Hardware(), FakeClock()
    ranks = RankTable(clock, "here", settle_at_once=True)
    hardware.of("nvml").observe_gpus([Gpu(0, "GPU-a", "0000:3b:00.0"), Gpu(1, "GPU-b", "0000:3c:00.0")])
    users = {4711: ["GPU-b"], 4800: ["GPU-a", "GPU-b"]}
    hardware.of("nvml").observe_gpu_processes(users)
    roots, exporter = Roots(proc=proc.root, sys=tmp_path / "sys"), ProcessExporter(ProcessConfig())
    await exporter.start(lent("process", clock, roots=roots, ranks=ranks, hardware=hardware))

    async def shown() -> list[tuple[dict[str, str], float]]:
        clock.advance(INTERVAL_SECONDS)
        await exporter.update()
        ranks.tick()
        await exporter._users.settle()
        counts = samples(exporter.families(exporter.snapshot()))
        return [(sample.labels, sample.value) for sample in counts if sample.name == "rankwatch_gpu_foreign_processes"]

    assert await shown() == []  # the rank is not named yet
    assert await shown() == [({"gpu": "1", "gpu_uuid": "GPU-b", "user": "1"}, 1.0)]
    assert await shown() == [({"gpu": "1", "gpu_uuid": "GPU-b", "user": "daemon"}, 1.0)]
    hardware.of("nvml").observe_gpu_processes(users, divided=["GPU-b"])
    assert await shown() == []
    hardware.of("nvml").observe_gpu_processes(users)
    assert len(await shown()) == 1
    await asyncio.to_thread(proc.remove, 4800)
    assert await shown() == []
    await exporter.drain()
