"""The search for rank processes."""

import os
from pathlib import Path

import pytest
from scanned_node import GPU, NCCL_MAPS, Node

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process import rank_search
from exporters.process.rank_search import LOOK_AGAIN_SECONDS, NAMED_SECONDS, OLD_SECONDS, SETTLED_SECONDS, YOUNG_SECONDS


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Provide an empty node."""
    return Node(tmp_path)


@pytest.mark.parametrize("thread", ["NCCL RAS", "NCCL Progress 0", "pt_nccl_watchdg", "pt_nccl_heartbt"])
def test_thread_makes_a_rank(node: Node, thread: str) -> None:
    """A process with a thread of NCCL or of PyTorch's NCCL process group is a rank; an inherited RANK is no proof."""
    node.proc.add(9, threads={8: "NCCLx", 7: "nccl", 6: "cuda-EvtHandlr", 5: "python3"}, environment={"RANK": "3"})
    node.proc.add(10, threads={11: thread}, environment={"RANK": "3", "SECRET": "x"})
    facts = node.look().new
    assert [(f.key, f.evidence, f.environment) for f in facts] == [(ProcessKey(10, 5000), "thread", {"RANK": "3"})]
    assert facts[0].start_seconds == 1_700_000_000 + 50.0


def test_launcher_shell_and_loaders(node: Node) -> None:
    """A rank counts as a rank, but not its launcher, its shell or its forked data loaders."""
    log, writer_key = node.log(30)
    rank = {"environment": {"RANK": "0"}, "maps": NCCL_MAPS, "files": {3: log, **GPU}}
    node.proc.add(10, name="torchrun", environment={"WORLD_SIZE": "8"})
    node.proc.add(20, name="bash", parent=10, environment={"RANK": "0"})
    node.proc.add(30, parent=20, threads={31: "cuda-EvtHandlr"}, **rank)  # type: ignore[arg-type]
    node.proc.add(40, parent=30, **rank)  # type: ignore[arg-type]
    node.proc.add(41, parent=40, **rank)  # type: ignore[arg-type]
    assert node.evidence(writer_key) == {30: "records"}


def test_library_and_gpu_without_records(node: Node) -> None:
    """Without NCCL threads and records, the topmost process that maps the library and uses a GPU is the rank."""
    node.proc.add(31, parent=30, maps=NCCL_MAPS, files=GPU)  # found before its parent, because pids can wrap
    node.proc.add(30, parent=10, maps=NCCL_MAPS, files=GPU)
    node.proc.add(12, parent=10, maps=NCCL_MAPS, files=GPU)
    node.proc.add(10, name="vllm", maps=NCCL_MAPS)
    node.proc.add(13, name="monitor", parent=10, files=GPU)
    assert node.evidence() == {12: "library", 30: "library"}


def test_child_of_a_rank_from_before_a_restart(node: Node) -> None:
    """A forked child of a rank that the agent knew before its restart is no rank, even at the first look."""
    node.add_rank(30, maps=NCCL_MAPS, files=GPU)
    node.proc.add(40, parent=30, maps=NCCL_MAPS, files=GPU)
    node.known = [ProcessKey(30, 5000)]
    assert node.evidence() == {}


def test_late_initialisation(node: Node) -> None:
    """A process is examined again 2 s after its number of threads changed, and after half a minute."""
    for threads in ({}, {11: "python3"}):
        node.proc.add(10, threads=threads)
        assert node.evidence() == {}
    node.add_rank(10)  # the thread gets its name after the look
    assert (node.evidence(), node.evidence(after=NAMED_SECONDS)) == ({}, {10: "thread"})
    node.proc.add(20)
    assert (node.evidence(), node.evidence(after=NAMED_SECONDS)) == ({}, {})
    node.proc.add(20, maps=NCCL_MAPS, files=GPU)
    assert (node.evidence(), node.evidence(after=LOOK_AGAIN_SECONDS)) == ({}, {20: "library"})


def test_a_process_that_runs_is_not_in_exec(node: Node) -> None:
    """A process whose memory has no program text is in exec; a running process and a kernel thread are not."""
    assert not ProcFS(Path("/proc")).is_in_exec(os.getpid())
    proc = ProcFS(node.proc.root)
    node.proc.add(10)
    for text, expected in (("0 0 0 0 0 0 0\n", False), ("9 1 0 0 0 3 0\n", False), ("33 3 0 0 0 33 0\n", True)):
        (node.proc.root / "10/statm").write_text(text)
        assert proc.is_in_exec(10) is expected
        assert (proc.open_files(10, bool) is None) is expected


def rank(number: int, of: int = 2, **more: str) -> dict[str, str]:
    """Return the environment that torchrun gives a rank."""
    return {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(of), "MASTER_PORT": "29500", **more}


def gloo_job(node: Node) -> None:
    """Add a torchrun with two ranks; rank 0 has a shell above it and two loaders below."""
    node.proc.add(10, name="torchrun", environment={"WORLD_SIZE": "2", "RANK": "0"})  # as in a pod of PyTorchJob
    node.proc.add(20, name="bash", parent=10, environment=rank(0))
    node.proc.add(30, parent=20, environment=rank(0))
    node.proc.add(31, parent=30, environment=rank(0))
    node.proc.add(32, parent=30, environment=rank(0))
    node.proc.add(40, parent=10, environment=rank(1))


def test_what_names_no_rank(node: Node) -> None:
    """A process is no rank if RANK is no number, has no size or is outside it, or if it has only Slurm's variables."""
    for pid, environment in enumerate(
        (
            {"RANK": "0"},
            rank(2),
            {"RANK": "-1", "WORLD_SIZE": "2"},
            {"RANK": "9" * 8, "WORLD_SIZE": "9" * 9},
            {"RANK": "x", "WORLD_SIZE": "2"},
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        ),
        start=50,
    ):
        node.proc.add(pid, environment=environment)
    assert node.look().without_nccl == 0
    node.proc.add(60, environment={"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert node.look().without_nccl == 1


def test_ranks_with_nccl_do_not_count(node: Node) -> None:
    """Each rank without NCCL counts once, but not its launcher, shell and children; a rank with NCCL does not count."""
    gloo_job(node)
    scan = node.look()
    assert (scan.new, scan.without_nccl) == ((), 2)
    node.proc.add(30, parent=20, environment=rank(0), threads={33: "NCCL RAS"})
    node.proc.add(40, parent=10, environment=rank(1), threads={43: "pt_nccl_watchdg"})
    assert len(node.look().new) == 2
    assert node.look(after=LOOK_AGAIN_SECONDS).without_nccl == 0


def test_ranks_where_configured(node: Node) -> None:
    """With the option, processes without NCCL become ranks after SETTLED_SECONDS; until then they count."""
    node.without_nccl = True
    gloo_job(node)
    assert [node.look(after=seconds).without_nccl for seconds in (1.0, SETTLED_SECONDS - 1.0)] == [2, 2]
    assert node.evidence() == {30: "environment", 40: "environment"}
    scan = node.look()
    assert (scan.new, scan.without_nccl) == ((), 0)


@pytest.mark.parametrize("threads", [{}, {33: "NCCL RAS"}])
def test_a_child_that_outlives_its_rank_is_no_rank(node: Node, threads: dict[int, str]) -> None:
    """A loader that outlives its rank neither counts nor becomes a rank."""
    gloo_job(node)
    node.proc.add(30, parent=20, environment=rank(0), threads=threads)
    node.look()
    node.proc.remove(30)
    node.proc.remove(40)
    node.proc.add(31, parent=1, environment=rank(0))
    assert node.look().without_nccl == 0
    node.without_nccl = True
    assert node.evidence(after=SETTLED_SECONDS) == {}


def test_a_restarted_rank_counts_at_once(node: Node) -> None:
    """If a launcher had a rank without NCCL, its next rank is found at the first look; another launcher's waits."""
    node.without_nccl = True
    gloo_job(node)
    node.look()
    assert node.evidence(after=SETTLED_SECONDS) == {30: "environment", 40: "environment"}
    node.proc.add(11, name="torchrun")
    for pid, parent in ((50, 10), (60, 11)):
        node.proc.add(pid, name="bash", parent=parent, environment=rank(0, MASTER_PORT=str(pid)))
        node.proc.add(pid + 1, parent=pid, environment=rank(0, MASTER_PORT=str(pid)))
    assert node.evidence() == {51: "environment"}


def ready_ranks(node: Node) -> dict[int, str]:
    """Return the ranks found by five looks within two and a half minutes."""
    new: dict[int, str] = {}
    for _ in range(5):
        new |= node.evidence(after=SETTLED_SECONDS / 2)
    return new


def test_ranks_of_one_job_in_different_looks(node: Node) -> None:
    """A launcher's second rank, started one look after the first, is found too, even if both restart."""
    node.without_nccl = True
    node.proc.add(10, name="torchrun")
    for first, second, port in ((30, 40, "1"), (50, 60, "2")):
        node.proc.add(first, parent=10, environment=rank(0, MASTER_PORT=port))
        new = node.evidence()
        node.proc.add(second, parent=10, environment=rank(1, MASTER_PORT=port))
        assert new | ready_ranks(node) == {first: "environment", second: "environment"}
        node.proc.remove(first)
        node.proc.remove(second)


def test_jobs_of_mpi_of_one_size(node: Node) -> None:
    """A second job of the same size and environment has its own ranks."""
    node.without_nccl = True
    for launcher in (10, 50):
        node.proc.add(launcher, name="mpirun")
        for number in ("0", "1"):
            environment = {"OMPI_COMM_WORLD_RANK": number, "OMPI_COMM_WORLD_SIZE": "2"}
            node.proc.add(launcher + 1 + int(number), parent=launcher, environment=environment)
        assert sorted(ready_ranks(node)) == [launcher + 1, launcher + 2]


def test_another_program_of_the_script_is_no_restart(node: Node) -> None:
    """A later program of a rank's script does not count as a rank at once."""
    node.without_nccl = True
    gloo_job(node)
    node.look()
    assert len(node.evidence(after=SETTLED_SECONDS)) == 2
    node.proc.remove(30)
    node.proc.add(50, name="rsync", parent=20, environment=rank(0))
    assert node.evidence() == {}


def test_a_look_between_fork_and_exec(node: Node) -> None:
    """A rank is found even if a look saw it between fork and exec, with its launcher's program and environment."""
    node.without_nccl = True
    launchers = {"WORLD_SIZE": "2", "RANK": "0"}
    node.proc.add(10, name="torchrun", environment=launchers)
    node.proc.add(30, name="torchrun", parent=10, environment=launchers)
    node.look()
    node.proc.add(30, parent=10, environment=rank(0), threads={31: "x"})
    node.proc.add(40, parent=10, environment=rank(1))
    assert ready_ranks(node) == {30: "environment", 40: "environment"}


def test_a_reused_pid_is_no_launcher(node: Node) -> None:
    """A rank with the reused pid of another rank's launcher is no launcher."""
    node.without_nccl = True
    node.proc.add(10, name="torchrun")
    node.proc.add(30, parent=10, environment=rank(0), start=6000)
    node.look()
    node.proc.remove(10)
    node.proc.add(10, start=9000, environment=rank(1, MASTER_PORT="77"))
    assert ready_ranks(node) == {30: "environment", 10: "environment"}


def test_never_mixed_with_nccl(node: Node) -> None:
    """If a process of a job has NCCL, its processes without NCCL become ranks only after its exit, at any age."""
    node.without_nccl = True
    gloo_job(node)
    node.proc.add(40, parent=10, environment=rank(1), threads={43: "NCCL RAS"})
    node.proc.add(70, environment=rank(1, MASTER_PORT="29501"))
    assert node.evidence() == {40: "thread"}
    assert node.evidence(after=SETTLED_SECONDS) == {70: "environment"}
    node.look(after=YOUNG_SECONDS)
    node.proc.remove(40)
    assert (node.evidence(), node.evidence(after=OLD_SECONDS)) == ({}, {30: "environment"})


def test_values_are_cut(node: Node) -> None:
    """Only the first MAX_CLAIM_CHARACTERS characters of each variable's value are used."""
    most = rank_search.MAX_CLAIM_CHARACTERS
    environment = rank(0, MASTER_ADDR="a" * (most + 1), LOCAL_RANK="1" * (most + 1))
    claim = rank_search.claim_of(environment)
    assert claim is not None
    assert claim == rank_search.claim_of(environment | {"MASTER_ADDR": "a" * most, "LOCAL_RANK": "1" * most})
    assert claim != rank_search.claim_of(environment | {"MASTER_ADDR": "a" * (most - 1)})
    node.proc.add(10, environment=environment)
    assert node.look().without_nccl == 1


def test_environments_take_a_part_of_a_look(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads environments for CLAIMS_SECONDS, and the next look goes on; each environment is read once."""
    for pid in range(10, 40):
        node.proc.add(pid, environment=rank(0, MASTER_PORT=str(pid)))
    monkeypatch.setattr(rank_search, "CLAIMS_SECONDS", 0.0)
    assert node.look().without_nccl == 0
    monkeypatch.setattr(rank_search, "CLAIMS_SECONDS", 60.0)
    assert node.look().without_nccl == 30
    monkeypatch.setattr(rank_search, "CLAIMS_SECONDS", 0.0)
    assert node.look().without_nccl == 30


def test_a_blocked_process_is_not_read(node: Node) -> None:
    """The environment of a process in uninterruptible sleep is read after it wakes up."""
    node.proc.add(10, environment=rank(0), state="D")
    assert node.look().without_nccl == 0
    node.proc.add(10, environment=rank(0))
    assert node.look().without_nccl == 1
