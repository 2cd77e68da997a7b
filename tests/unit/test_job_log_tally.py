"""The tally of one job's log: counts, the first cause, causes from several lines, and progress."""

from __future__ import annotations

from typing import Any

import pytest
from job_log_jobs import classify, event, job

from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log import tally as tallies
from exporters.job_log.catalogue import ProgressPattern, catalogue
from exporters.job_log.collectives import MAX_GROUPS, MAX_SEQUENCES, SHOWN_LEAST
from exporters.job_log.jobs import LoggedJob
from exporters.job_log.tally import (
    CASCADE_SECONDS,
    EVALUATION_SECONDS,
    LAST_TIMEOUT_SECONDS,
    RECOVERED_SECONDS,
    STARTED_SECONDS,
    JobTally,
    ShownLog,
    Training,
)

ECC = "[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
TIMEOUT = (
    "[rank{rank}]:[E1 ProcessGroupNCCL.cpp:6] [PG ID 2 PG GUID {guid}(tp) Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=1) ran for 2 "
    "milliseconds before timing out."
)
POSITION = (
    "[rank{rank}]:[E1 ProcessGroupNCCL.cpp:6] [PG ID 2 PG GUID {guid}(tp) Rank 1]  failure detected by watchdog at "
    "work sequence id: 9 PG status: last enqueued work: {enqueued}, last completed work: {completed}"
)
RETRY = (
    "n7:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.5<40> with status=12 opcode=0 len=0 vendor err 129"
)
PORT = "n9:1:2 [0] NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)"
MONITOR = "[{}] [workload:?(1) infra:0(?)] rank_monitor_server.py:4 Was out of section for 5 seconds"
ITERATION = "iteration {} / 1000 | consumed samples: 1 |"


class Log:
    """A job's tally of lines."""

    def __init__(self, of: LoggedJob | None = None, admits: bool = True) -> None:
        self.job = of or job()
        self.tally = JobTally("4711", "here", lambda _: admits)

    def write(self, line: str, seconds: float = 1000.0, rank: str = UNKNOWN_RANK) -> Log:
        """Add a line that was written at ``seconds`` into a file of ``rank``."""
        self.tally.take(event(line), self.job, rank, seconds)
        return self

    def shown(self, now: float = 1000.0 + CASCADE_SECONDS) -> ShownLog:
        """Return the results."""
        return self.tally.shown(now)

    def root(self) -> tuple[str, str, str] | None:
        """Return category, rank and host of the first cause."""
        root = self.shown().root
        return None if root is None else (root.category, root.rank, root.host)


@pytest.mark.parametrize(("line", "more", "file_rank", "rank"), [
    ("[rank7]: ValueError: x", {}, "2", "7"),
    ("[rank8]: ValueError: x", {}, UNKNOWN_RANK, UNKNOWN_RANK),  # the job has 8 ranks
    ("[rank7]: ValueError: x", {"world_size": 0}, UNKNOWN_RANK, UNKNOWN_RANK),
    ("3: ValueError: x", {"tasks_are_ranks": True}, UNKNOWN_RANK, "3"),
    ("3: ValueError: x", {}, UNKNOWN_RANK, UNKNOWN_RANK),
    ("here:4002:9 [0] NCCL WARN Cuda failure 'x'", {}, UNKNOWN_RANK, "2"),
    ("pod-a:4002:9 [0] NCCL WARN Cuda failure 'x'", {}, UNKNOWN_RANK, "2"),
    ("else:4002:9 [0] NCCL WARN Cuda failure 'x'", {}, UNKNOWN_RANK, UNKNOWN_RANK),
    ("(Worker_TP0 pid=4001) ValueError: x", {}, UNKNOWN_RANK, "1"),
    ("(TrainWorker pid=4001, ip=192.0.2.1) ValueError: x", {}, UNKNOWN_RANK, UNKNOWN_RANK),  # on another node
    ("ValueError: x", {}, "5", "5"),
    (MONITOR.format("here"), {}, UNKNOWN_RANK, "3"),
    (MONITOR.format("pod-a"), {}, UNKNOWN_RANK, "2"),
    (MONITOR.format("else"), {}, UNKNOWN_RANK, UNKNOWN_RANK),
    ("mpirun noticed that process rank 6 with PID 1 on node n6 exited on signal 9", {}, UNKNOWN_RANK, "6"),
])  # fmt: skip
def test_whose_a_line_is(line: str, more: dict[str, Any], file_rank: str, rank: str) -> None:
    """A line's rank comes from its text, its prefix, the scheduler's task, its process or its file, in this order."""
    log = Log(job(**more)).write(line, rank=file_rank)
    assert {kind[0] for kind in log.shown().events} == {rank}


RECEIVED = "n7:4001 NCCL DIAG [INFO] Xid 79 detected at least 2 times on host gpu-9. For the recommended response, see"
IGNORED = RECEIVED.replace("For the recommended", "No user action or further investigation is required")


def timeout(rank: int, op: str = "BROADCAST", size: int = 8, guid: str = "5", seq: int = 9) -> str:
    """Return a watchdog's timeout line."""
    return TIMEOUT.format(rank=rank, op=op, size=size, guid=guid, seq=seq)


def timeout_then_group(rank: int, op: str, guid: str) -> list[str]:
    """Return the lines of a watchdog of PyTorch 2.5 and newer: only the second line names the process group."""
    without_group = timeout(rank, op).replace("[PG ID 2 PG GUID 5(tp) Rank 1]", f"[Rank {rank}]")
    return [without_group, POSITION.format(rank=rank, guid=guid, enqueued=10, completed=8)]


REDUCES = [timeout(rank, "ALLREDUCE") for rank in (0, 1, 2)]
REDUCES_OF_5 = [line for rank in (0, 1, 2) for line in timeout_then_group(rank, "ALLREDUCE", "5")]


@pytest.mark.parametrize(("lines", "root"), [
    (["srun: error: Node failure on n12"], ("node_failed", UNKNOWN_RANK, "n12")),  # the named node
    ([PORT], ("port_error", UNKNOWN_RANK, "n9")),  # the node of the line's writer
    (["pod-a:4002:9 [0] NCCL WARN Cuda failure 'x'"], ("cuda_error", "2", "here")),
    (["srun: error: Node failure on n.."], ("node_failed", UNKNOWN_RANK, "")),
    ([ECC.format(rank=1), PORT], ("gpu_hardware", "1", "")),  # the first cause
    ([RETRY] * 100, ("ib_retry_exceeded", UNKNOWN_RANK, "n7")),
    ([*[RETRY] * 100, PORT, RETRY], ("port_error", UNKNOWN_RANK, "n9")),  # a weak cause is replaced
    ([RECEIVED, "[rank2]: KeyError: 1"], ("gpu_hardware", UNKNOWN_RANK, "gpu-9")),
    ([IGNORED], None),
    (REDUCES, None),
    ([*REDUCES, timeout(6), timeout(7, "ALLREDUCE")], ("collective_mismatch", "6", "")),  # another operation
    ([*REDUCES, timeout(6, "ALLREDUCE", 9), timeout(7, "ALLREDUCE")], ("collective_mismatch", "6", "")),  # another size
    ([*REDUCES, timeout(6, guid="6")], None),  # another group, another number, a send, an unnamed group, no rank
    ([*REDUCES, timeout(6, seq=10)], None),
    ([*REDUCES, timeout(6, "SEND")], None),
    ([*REDUCES, timeout(6).replace("[PG ID 2 PG GUID 5(tp) Rank 1]", "[Rank 1]")], None),
    ([*REDUCES, timeout(9)], None),
    ([*REDUCES_OF_5, *timeout_then_group(6, "BROADCAST", "6")], None),
    ([*REDUCES_OF_5, *timeout_then_group(6, "BROADCAST", "5")], ("collective_mismatch", "6", "")),
])  # fmt: skip
def test_the_first_cause(lines: list[str], root: tuple[str, str, str] | None) -> None:
    """The first cause that is not weak wins, with the rank or node in its line or the rank with another operation."""
    log = Log()
    for line in lines:
        log.write(line)
    assert log.root() == root
    assert log.shown().events.get(("6", "collective_mismatch", "root"), 0) == (root == ("collective_mismatch", "6", ""))


def test_time_outs_hide_no_earlier_cause() -> None:
    """Time-outs of the ranks that waited for a failed rank do not replace its failure for an hour."""
    log = Log().write(ECC.format(rank=1), 0.0)
    log.write("[rank0]:[E1 x.cpp:1] [PG 0 Rank 0] Heartbeat monitor timed out! Process will end.", 600.0)
    for rank, operation in enumerate(("ALLREDUCE", "ALLREDUCE", "ALLGATHER")):
        log.write(TIMEOUT.format(rank=rank, guid=5, seq=9, op=operation, size=4), 600.0)
    assert log.root() == ("gpu_hardware", "1", "")
    for rank, operation in enumerate(("ALLREDUCE", "ALLREDUCE", "ALLGATHER")):
        log.write(TIMEOUT.format(rank=rank, guid=5, seq=10, op=operation, size=4), LAST_TIMEOUT_SECONDS + 1.0)
    assert log.root() == ("collective_mismatch", "2", "")


def test_a_file_of_a_rank() -> None:
    """A line in a rank's own file counts for the rank and for this node, unless the line names a node."""
    assert Log().write("ValueError: x", rank="3").root() == ("program_error", "3", "here")
    assert Log().write(RECEIVED, rank="1").root() == ("gpu_hardware", UNKNOWN_RANK, "gpu-9")


def test_a_cascade_is_named_where_no_root_comes_in_time() -> None:
    """A consequence (cascade) is shown after a minute without a root cause, and dropped once a root cause appears."""
    log = Log().write("[rank0]: torch.distributed.DistBackendError: NCCL error in: x")
    assert log.shown(1000.0 + CASCADE_SECONDS - 1).cascade is None
    cascade = log.shown().cascade
    assert cascade is not None
    assert (cascade.category, cascade.rank) == ("nccl_error", "0")
    log.write(ECC.format(rank=1), 1000.0 + CASCADE_SECONDS - 1)
    assert log.shown().cascade is None
    assert log.root() == ("gpu_hardware", "1", "")


def test_a_job_that_goes_on_was_not_ended() -> None:
    """A cause is dropped if training makes a step more than a minute later, or if ranks have started since."""
    log = Log().write(ITERATION.format(10), 990.0).write(ECC.format(rank=1))
    log.write(ITERATION.format(11), 1000.0 + RECOVERED_SECONDS)
    assert log.root() is not None
    log.write(ITERATION.format(12), 1001.0 + RECOVERED_SECONDS)
    assert log.root() is None
    log.write(ECC.format(rank=2), 2000.0)
    log.tally.begin(2000.0 + STARTED_SECONDS)
    assert log.root() is not None
    log.tally.begin(2001.0 + STARTED_SECONDS)
    assert log.root() is None
    assert sum(log.shown().events.values()) == 2


def test_positions_of_the_least_and_the_farthest() -> None:
    """Of a process group, the ranks with the fewest enqueued operations and the rank with the most are shown."""
    log = Log()
    for rank in range(8):
        log.write(POSITION.format(rank=rank, guid="5", enqueued=20 + rank, completed=10))
    shown = log.shown().positions
    assert [(one.rank, one.enqueued) for one in shown] == [*((str(n), 20 + n) for n in range(SHOWN_LEAST)), ("7", 27)]
    assert {(one.group, one.completed) for one in shown} == {("5", 10)}


def test_a_rank_that_dumps_at_the_signal_of_others_shows_its_progress() -> None:
    """A rank without its own timeout has its position from the dump that another rank's timeout triggers."""
    line = (
        "[rank5]:[E1 ProcessGroupNCCL.cpp:7] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal due to a "
        "collective timeout from rank 2 and we will try our best to dump the debug info. Last enqueued NCCL work: 6, "
        "last completed NCCL work: 6."
    )
    (position,) = Log().write(line).shown().positions
    assert (position.group, position.rank, position.enqueued, position.completed) == ("0", "5", 6, 6)


def test_groups_have_short_names() -> None:
    """A group's label is a number, or a hash if its name is text, so that no text of a log becomes a label."""
    log = Log()
    for guid in ("0", "17", "mesh_tp_secret"):
        log.write(POSITION.format(rank=1, guid=guid, enqueued=2, completed=1))
    groups = [one.group for one in log.shown().positions]
    assert groups[:2] == ["0", "17"]
    assert len(groups[2]) == 8
    assert "mesh" not in groups[2]


def test_bounds_of_a_tally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of ranks above the limits count without a rank; groups and operations above their limits are left out."""
    monkeypatch.setattr(tallies, "MAX_EVENTS", 2)
    log, error = Log(), ("program_error", "root")
    for rank in range(4):
        log.write(f"[rank{rank}]: ValueError: x")
    assert log.shown().events == {("0", *error): 1, ("1", *error): 1, (UNKNOWN_RANK, *error): 2}
    assert set(Log(admits=False).write("[rank1]: ValueError: x").shown().events) == {(UNKNOWN_RANK, *error)}
    for group in range(MAX_GROUPS + 1):
        log.write(POSITION.format(rank=1, guid=group, enqueued=2, completed=1))
    assert len(log.shown().positions) == MAX_GROUPS
    forgets = Log().write(timeout(1, "ALLREDUCE", seq=0))
    for seq in range(1, MAX_SEQUENCES + 1):
        forgets.write(timeout(1, "ALLREDUCE", seq=seq))
    assert forgets.write(timeout(2, seq=0)).root() is None
    assert forgets.write(timeout(2, seq=MAX_SEQUENCES)).root() is not None


def test_iterations_and_their_time() -> None:
    """The last iteration is shown; its duration comes from the log's own text, otherwise from the lines' times."""
    log = Log()
    for number in range(13):
        log.write(ITERATION.format(100 + number), 1000.0 + 10 * number)
    progress = log.shown().progress
    assert (progress.iteration, progress.iteration_seconds) == (112, pytest.approx(10.0))
    log.write("iteration 113/1000 | elapsed time per iteration (ms): 2500.0 |", 1130.0)
    assert log.shown().progress.iteration_seconds == 2.5


@pytest.mark.parametrize(("iteration", "ms", "shown"), [
    ("5", "12.5", (5, 0.0125)),
    ("5", "12.5.", (5, None)),
    ("5", "nan", (5, None)),
    ("--5", "1", (None, None)),
    ("9" * 5000, "1", (None, None)),
], ids=["number", "sentence", "nan", "sign", "huge"])  # fmt: skip
def test_a_sites_pattern_may_match_any_text(iteration: str, ms: str, shown: tuple[int | None, float | None]) -> None:
    """A group of a site's pattern is used only if its text is a number."""
    pattern = ProgressPattern(kind="iteration", contains="step ", pattern=r"step (?P<iteration>\S+) in (?P<ms>\S+)")
    match, progress = classify(f"step {iteration} in {ms}\n".encode(), catalogue([pattern])), Training()
    assert match is not None
    progress.take(match, 1000.0)
    assert (progress.shown.iteration, progress.shown.iteration_seconds) == shown


def test_a_restart_goes_back_and_an_evaluation_does_not() -> None:
    """The iteration can decrease after a restart; the progress bar of a shorter loop does not change the iteration."""
    log = Log().write(ITERATION.format(100)).write(" 10%|# | 5/50 [00:01<00:10,  2.9it/s]")
    assert log.shown().progress.iteration == 100
    assert log.write(ITERATION.format(60)).shown().progress.iteration == 60


def test_loops_of_other_lengths_hide_no_training() -> None:
    """A finished loop hides no later training; for an hour, a longer loop within a training is an evaluation."""
    log = (
        Log().write("100%|# | 50000/50000 [01:00<00:00, 9it/s]").write(" 10%|# | 100/300 [00:01<00:10, 9it/s]", 1001.0)
    )
    for iteration in (1, 150, 1000):
        log.write(f" 10%|# | {iteration}/1000 [00:01<00:10, 9it/s]", 1002.0)
        assert (log.shown().progress.iteration, log.shown().progress.of) == (100, 300)
    assert log.write(" 10%|# | 101/300 [00:01<00:10, 9it/s]", 1003.0).shown().progress.iteration == 101
    log.write(" 10%|# | 7/1000 [00:01<00:10, 9it/s]", 1003.0 + EVALUATION_SECONDS)
    assert log.shown().progress.iteration == 101
    log.write(" 10%|# | 8/1000 [00:01<00:10, 9it/s]", 1003.5 + EVALUATION_SECONDS)
    assert (log.shown().progress.iteration, log.shown().progress.of) == (8, 1000)
    log.tally.begin(1004.0 + EVALUATION_SECONDS)  # a new run
    assert (
        log.write(ITERATION.replace("1000", "9000").format(5), 1005.0 + EVALUATION_SECONDS).shown().progress.of == 9000
    )


@pytest.mark.parametrize(("lines", "expected"), [
    ({1000.0: "saving checkpoint at iteration 5 to /x in torch_dist format"}, (1000.0, None, None)),
    ({1000.0: "saving checkpoint at iteration 5 to /x", 1042.0: "successfully saved checkpoint from iteration 5 to /x"},
     (None, 1042.0, 42.0)),
    ({1100.0: "Finished saving the checkpoint in 5.53 seconds."}, (None, 1100.0, 5.53)),
])  # fmt: skip
def test_checkpoints(lines: dict[float, str], expected: tuple[float | None, ...]) -> None:
    """A checkpoint's duration comes from the log's own text, otherwise from the times of its lines, if these differ."""
    log = Log()
    for seconds, line in lines.items():
        log.write(line, seconds)
    shown = log.shown().progress
    assert (shown.checkpoint_began, shown.checkpoint_ended, shown.checkpoint_seconds) == expected
    for end in ("saving checkpoint at iteration 6 to /x", "successfully saved checkpoint from iteration 6 to /x"):
        log.write(end, 1200.0)
    assert log.shown().progress.checkpoint_seconds is None
