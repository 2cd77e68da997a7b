"""Real runs of the simulated job: its files, its deaths, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jobs import SimulatedJob
from nodes import Node, wait_until, why_no_nodes

FAST = ("--records-per-second", "400", "--dump-interval-us", "20000", "--grace", "3")
FOUR = ("--ranks", "4", "--tp", "2", *FAST)


def records_of(path: Path) -> list[dict[str, Any]]:
    """Return the file's records; a cut line fails."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds_of(path: Path) -> Counter[tuple[str, str, int]]:
    """Return the number of records by (communicator id, collective, size)."""
    return Counter(
        (record["header"]["id"], record["coll_perf"]["coll"], record["coll_perf"]["coll_msg_size_bytes"])
        for record in records_of(path)
    )


def sizes(dump_dir: Path) -> dict[str, int]:
    """Return the sizes of all files by name."""
    return {path.name: path.stat().st_size for path in dump_dir.iterdir()}


def wait_for_silence(dump_dir: Path, seconds: float = 0.5) -> None:
    """Wait until no file has grown for ``seconds``."""
    seen: list[tuple[float, dict[str, int]]] = []

    def silent() -> bool:
        now, current = time.monotonic(), sizes(dump_dir)
        if not seen or seen[-1][1] != current:
            seen.append((now, current))
        return now - seen[-1][0] >= seconds

    wait_until(silent, 10.0, "silence")


def alive(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_files_hold_exactly_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    """Eight ranks with ten steps write each operation once for each member of its communicator, as many records as
    their summaries say, and exit with status 0."""
    with SimulatedJob(tmp_path, "--steps", "10", "--flush-at-end", *FAST) as job:
        assert job.wait() == 0
    everything: Counter[tuple[str, str, int]] = Counter()
    for rank in range(8):
        path = next(job.dump_dir.glob(f"*-pid{job.pid(rank)}.log"))
        assert path.name == f"{os.uname().nodename}-pid{job.pid(rank)}.log"
        summary = json.loads((tmp_path / f"written-{rank}.json").read_text())
        written = {
            (record["comm"], record["collective"], record["size_bytes"]): record["records"]
            for record in summary["records"]
        }
        kinds = kinds_of(path)
        assert kinds == written
        assert sorted(kinds.values()) == [10, 10, 10, 10, 20, 20]
        assert path.stat().st_size == summary["file_bytes"]
        assert path.stat().st_mode & 0o777 == 0o666
        for record in records_of(path):
            assert (record["metadata"]["hostname"], record["metadata"]["pid"]) == (os.uname().nodename, job.pid(rank))
            perf = record["coll_perf"]
            everything[record["header"]["id"], perf["coll"], perf["coll_sn"]] += 1
    # Every operation has one record per member: TP and world groups of 4 and 8, DP groups of 2.
    assert Counter(everything.values()) == {4: 2 * 50, 2: 4 * 20, 8: 10}
    assert json.loads((tmp_path / "job-0.json").read_text())["ranks"] == 8


def test_a_killed_rank_stalls_the_others_and_its_data_loader_stays(tmp_path: Path) -> None:
    """After a SIGKILL the files stop growing, the peers live, and the data loader keeps the log open."""
    with SimulatedJob(tmp_path, *FOUR, "--kill", "1", "--kill-at", "0.3", "--dataloaders", "2") as job:
        loaders = job.wait_for("ready")["data_loaders"]["1"]
        job.wait_for("exited", rank=1, signal="SIGKILL")
        wait_for_silence(job.dump_dir)
        assert [alive(job.pid(rank)) for rank in range(4)] == [True, False, True, True]
        assert len(loaders) == 2
        for loader in loaders:
            assert b"RANK=1" in Path(f"/proc/{loader}/environ").read_bytes().split(b"\0")
            held = [os.readlink(entry) for entry in Path(f"/proc/{loader}/fd").iterdir()]
            assert any(target.endswith(f"-pid{job.pid(1)}.log") for target in held)
            assert len(list(Path(f"/proc/{loader}/task").iterdir())) == 1
        # All members, even the dead one, arrived at the last operation that is in a file.
        assert all(size > 0 for size in sizes(job.dump_dir).values())
        job.signal_launcher(signal.SIGTERM)
        assert job.wait() == 1
        assert job.exits() == {0: "SIGTERM", 1: "SIGKILL", 2: "SIGTERM", 3: "SIGTERM"}
    wait_until(lambda: not any(map(alive, loaders)), 3.0, "the data loaders' end")


def test_torchrun_ends_the_others_when_one_crashes(tmp_path: Path) -> None:
    """After a segmentation fault the launcher ends the other ranks by SIGTERM within a second."""
    with SimulatedJob(tmp_path, *FOUR, "--kill", "2", "--kill-signal", "SEGV", "--teardown", "torchrun") as job:
        assert job.wait() == 1
    assert job.exits() == {0: "SIGTERM", 1: "SIGTERM", 2: "SIGSEGV", 3: "SIGTERM"}
    exits = [event for event in job.events if event["event"] == "exited"]
    assert exits[0]["rank"] == 2
    assert exits[-1]["timestamp_seconds"] - exits[0]["timestamp_seconds"] < 1.0
    assert not list(Path.cwd().glob("core*"))


@pytest.mark.parametrize(("slow_seconds", "grace_seconds", "signal_name"), [(0.7, 5, "SIGTERM"), (9, 0.7, "SIGKILL")])
def test_a_slow_sigterm_is_waited_for_within_the_grace(
    tmp_path: Path, slow_seconds: float, grace_seconds: float, signal_name: str
) -> None:
    """A rank that is slow at SIGTERM exits last, by SIGKILL when the grace period is over."""
    slow = ("--slow-sigterm-ranks", "3", "--slow-sigterm-seconds", str(slow_seconds), "--grace", str(grace_seconds))
    with SimulatedJob(tmp_path, *FOUR, *slow) as job:
        job.wait_for("ready")
        job.signal_launcher(signal.SIGINT)
        cancelled = job.wait_for("cancelled")["timestamp_seconds"]
        assert job.wait() == 1
    assert job.exits() == {0: "SIGTERM", 1: "SIGTERM", 2: "SIGTERM", 3: signal_name}
    assert 0.6 < job.wait_for("exited", rank=3)["timestamp_seconds"] - cancelled < 3.0


def test_a_rank_that_leaves_by_itself_shows_its_status(tmp_path: Path) -> None:
    """`--exit` ends one rank with the given status, and the launcher ends even a stopped peer."""
    with SimulatedJob(
        tmp_path, *FOUR, "--exit", "0", "--exit-code", "3", "--exit-at", "0.5", "--teardown", "srun"
    ) as job:
        job.wait_for("ready")
        job.kill(job.pid(1), signal.SIGSTOP)
        assert job.wait() == 1
    assert job.exits() == {0: 3, 1: "SIGTERM", 2: "SIGTERM", 3: "SIGTERM"}


def test_a_stuck_rank_lives_and_no_rank_passes_its_step(tmp_path: Path) -> None:
    """A stuck rank lives, no rank that needs it passes its step, and the time limit ends the job."""
    stuck = ("--stuck", "3", "--stuck-at-step", "5", "--duration", "1", "--grace", "0.5")
    with SimulatedJob(tmp_path, *FOUR, *stuck) as job:
        job.wait_for("ready")
        wait_for_silence(job.dump_dir, 0.4)
        assert alive(job.pid(3))
        assert kinds_of(next(job.dump_dir.glob(f"*-pid{job.pid(3)}.log"))).total() == 5 * 8
        # Rank 0 is in another TP group: it reaches the world's operation after those of its TP (5) and DP (2) groups.
        assert kinds_of(next(job.dump_dir.glob(f"*-pid{job.pid(0)}.log"))).total() == 5 * 8 + 5 + 2
        assert job.wait() == 1
    assert job.wait_for("over_time")


def test_new_communicators_restart_the_file(tmp_path: Path) -> None:
    """New communicators empty the file: same inode, new ids, numbers from 0; the summaries have all operations."""
    recreate = ("--recreate-every", "4", "--recreate-seconds", "0.6", "--steps", "10", "--ranks-per-process", "2")
    with SimulatedJob(tmp_path, *FOUR, *recreate, "--flush-at-end") as job:
        job.wait_for("ready")
        inodes = {path: path.stat().st_ino for path in job.dump_dir.iterdir()}
        wait_until(lambda: all(len(path.read_text().splitlines()) == 2 * 4 * 8 for path in inodes), 5.0, "four steps")
        former = {path: {comm for comm, _, _ in kinds_of(path)} for path in inodes}
        assert job.wait() == 0
    for path, inode in inodes.items():
        assert path.stat().st_ino == inode
        perfs = [(record["header"]["id"], record["header"]["rank"], record["coll_perf"]) for record in records_of(path)]
        assert len(perfs) == 2 * 2 * 8
        assert not former[path] & {comm for comm, _, _ in perfs}
        numbers = Counter((comm, rank, perf["coll"], perf["coll_sn"]) for comm, rank, perf in perfs)
        assert {*numbers.values()} == {1}
        assert {number for *_, number in numbers} == {*range(2 * 2)}  # two of a kind in a step of the TP group
    worlds = [{perf["header"]["id"] for perf in records_of(path) if perf["header"]["n_ranks"] == 4} for path in inodes]
    assert worlds[0] == worlds[1]
    assert len(worlds[0]) == 1
    for rank in range(4):
        summary = json.loads((tmp_path / f"written-{rank}.json").read_text())
        counts: Counter[str] = Counter()
        for record in summary["records"]:
            counts[record["comm"]] += record["records"]
        # World, TP and DP communicators of four, four and two steps.
        assert sorted(counts.values()) == sorted([4, 4, 2, 20, 20, 10, 8, 8, 4])


def test_processes_look_like_ranks(tmp_path: Path) -> None:
    """Ranks have the environment, the thread name and no core dumps; the caller's scheduler variables are removed."""
    looks = ("--scheduler", "slurm", "--job-id", "991", "--master-port", "29777")
    foreign = {"RANK": "77", "SLURM_PROCID": "5", "TORCHELASTIC_RUN_ID": "another"}
    with SimulatedJob(tmp_path, *FOUR, *looks, env=foreign) as job:
        job.wait_for("ready")
        pid = job.pid(3)
        environment = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
        )
        threads = {Path(entry, "comm").read_text().strip() for entry in Path(f"/proc/{pid}/task").iterdir()}
        limits = Path(f"/proc/{pid}/limits").read_text()
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29777",
        "SLURM_JOB_ID": "991",
    }
    assert expected.items() <= environment.items()
    assert not {"TORCHELASTIC_RUN_ID", "SLURM_PROCID"} & {*environment}
    assert "NCCL RAS" in threads
    assert next(line.split()[4] for line in limits.splitlines() if line.startswith("Max core")) == "0"


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    """Ranks, even stopped ones, and data loaders end with their launcher."""
    with SimulatedJob(tmp_path, *FOUR) as job:
        loaders = [pid for group in job.wait_for("ready")["data_loaders"].values() for pid in group]
        pids = [job.pid(rank) for rank in range(4)]
        job.kill(pids[2], signal.SIGSTOP)
        job.signal_launcher(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, pids + loaders)), 3.0, "the end of all")


@pytest.mark.root
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
def test_two_nodes_make_one_job(tmp_path: Path) -> None:
    """Launchers on two nodes share communicators and progress and see only their own processes."""
    options = ("--hosts", "2", "--flush-at-end", *FOUR)
    with (
        Node("node-a") as node_a,
        Node("node-b") as node_b,
        SimulatedJob(tmp_path, *options, "--host-index", "0", node=node_a) as job_a,
    ):
        job_a.wait_for("started", rank=1)
        assert node_b.pids() == {1}
        with SimulatedJob(tmp_path, *options, "--host-index", "1", node=node_b) as job_b:
            job_b.wait_for("ready")
            assert {job_b.pid(2), job_b.pid(3)} <= node_b.pids()
            wait_until(lambda: len(sizes(job_a.dump_dir)) == 4 and min(sizes(job_a.dump_dir).values()) > 0)
            job_b.signal_launcher(signal.SIGUSR1)
            assert (job_a.wait(), job_b.wait()) == (0, 0)
    names = sorted(path.name.split("-pid")[0] for path in job_a.dump_dir.iterdir())
    assert names == ["node-a", "node-a", "node-b", "node-b"]
    members: dict[str, set[tuple[str, int, int, int]]] = {}
    for path in job_a.dump_dir.iterdir():
        for record in records_of(path):
            header = record["header"]
            member = (record["metadata"]["hostname"], header["rank"], header["n_ranks"], header["nnodes"])
            members.setdefault(header["comm_name"], set()).add(member)
    assert members["data_parallel_group_0"] == {("node-a", 0, 2, 2), ("node-b", 1, 2, 2)}
    assert members["tensor_model_parallel_group_1"] == {("node-b", 0, 2, 1), ("node-b", 1, 2, 1)}
    assert members["world"] == {("node-a", 0, 4, 2), ("node-a", 1, 4, 2), ("node-b", 2, 4, 2), ("node-b", 3, 4, 2)}
