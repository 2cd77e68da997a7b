"""The parts that exporters add to a bundle: ends of Inspector files, lateness, the job's log, and health."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_clock import FakeClock
from rank_table import RankTable

from agent.app.health_part import OLD_FAULT_SECONDS, causes, health_part, struck_ranks
from agent.core.identity import RankLabel
from agent.hardware.fault_table import GpuFault, TimedFault
from agent.hardware.gpu_faults import DriverReport, judge
from agent.hardware.ledger import HealthLedger, Subject
from agent.ranks.health import HealthSnapshot
from agent.ranks.liveness.causes import cause
from agent.ranks.rank.facts import ProcessFacts
from agent.ranks.rank.process import RankGpu
from agent.sdk.evidence import Wanted
from agent.sdk.exporter import OwnThread
from agent.sdk.files import FollowedFile, Share
from agent.sdk.ranks import UNKNOWN_RANK, ProcessKey, WriterKey
from exporters.inspector.reading import watched_directory
from exporters.inspector.reading.last_lines import (
    BLAMED_SHARE,
    MAX_FILES,
    MAX_TRIED_LINES,
    SHOWN_SHARE,
    TAIL_BYTES,
    RankFile,
    ends,
    files_of,
    last_operation,
    offered,
)
from exporters.job_log.passages import log_part
from exporters.job_log.tally import FirstEvent, ShownLog, TrainingProgress

LINE = (
    b'{"header": {"id": "0xabc", "comm_name": "world", "rank": 3, "n_ranks": 8}, '
    b'"coll_perf": {"coll": "AllReduce", "coll_sn": 812, "coll_msg_size_bytes": 8388608, "coll_exec_time_us": 9, '
    b'"coll_timing_source": "kernel_gpu"}}\n'
)
P2P_LINE = (
    b'{"header": {"id": "0xabc", "rank": 3, "n_ranks": 8}, "p2p_perf": {"p2p": "Send", "p2p_sn": 7, "p2p_peer": 1, '
    b'"p2p_msg_size_bytes": 8, "p2p_exec_time_us": 9, "p2p_timing_source": "kernel_gpu"}}\n'
)


RANK_FILE = RankFile((1, 2))


def followed(path: Path) -> FollowedFile:
    """Return the file as the follower stores it."""
    status = path.stat()
    return FollowedFile(status.st_dev, status.st_ino, str(path), status.st_size, 0.0, Share(0, ""), status.st_size)


def ends_of(*paths: Path) -> dict[str, bytes]:
    """Return the ends of files, keyed by rank."""
    files = {file.identity: file for file in map(followed, paths)}
    return ends(files, {str(number): RankFile(identity) for number, identity in enumerate(files)})


def test_the_end_begins_with_a_whole_line(tmp_path: Path) -> None:
    """Of a long file the last lines are taken; a short file is taken whole."""
    long, short = tmp_path / "long", tmp_path / "short"
    long.write_bytes(b"x" * 1000 + b"\n" + LINE * (2 * TAIL_BYTES // len(LINE)))
    short.write_bytes(LINE)
    result = ends_of(long, short)
    assert TAIL_BYTES - len(LINE) <= len(result["0"]) <= TAIL_BYTES
    assert result["0"].startswith(b'{"header"')
    assert result["1"] == LINE


def test_another_file_under_the_name_is_not_read(tmp_path: Path) -> None:
    """A file that another file, a link or a pipe has replaced is not read."""
    paths = [tmp_path / name for name in ("other", "link", "pipe")]
    for path in paths:
        path.write_bytes(LINE)
    files = {file.identity: file for file in map(followed, paths)}
    (tmp_path / "new").write_bytes(b"secret\n")
    (tmp_path / "new").rename(paths[0])
    paths[1].unlink()
    paths[1].symlink_to(paths[0])
    paths[2].unlink()
    os.mkfifo(paths[2])
    assert ends(files, {str(number): RankFile(identity) for number, identity in enumerate(files)}) == {}


def test_only_so_many_files_are_read(tmp_path: Path) -> None:
    """Only the first MAX_FILES files are read."""
    paths = [tmp_path / str(number) for number in range(MAX_FILES + 1)]
    for path in paths:
        path.write_bytes(LINE)
    assert len(ends_of(*paths)) == MAX_FILES


@pytest.mark.parametrize(("lines", "said"), [
    (LINE, "AllReduce no. 812, 8388608 bytes, in world"),
    (LINE.replace(b"world", b"unknown"), "AllReduce no. 812, 8388608 bytes, in 0xabc"),
    (LINE + P2P_LINE, "Send no. 7 with 1, in 0xabc"),
    (LINE + b'{"header": {"id', "AllReduce no. 812, 8388608 bytes, in world"),
    (LINE + b'{"header": {"comm_name": "\xff"}}\n', "AllReduce no. 812, 8388608 bytes, in world"),
    (LINE + b'{"odd":' + b"[" * 9000 + b"\n", "AllReduce no. 812, 8388608 bytes, in world"),
    (LINE + b'{"dump_stats": {}}\n[1]\n', "AllReduce no. 812, 8388608 bytes, in world"),
    (b"", ""),
])  # fmt: skip
def test_the_last_operation_in_words(lines: bytes, said: str) -> None:
    """The last complete record of an operation becomes a sentence; cut lines and other text are skipped."""
    assert last_operation(lines) == said


def test_a_hostile_end_costs_little() -> None:
    """64 files of short lines without records take less than 0.2 s of CPU time."""
    began = time.thread_time()
    ranks = [str(rank) for rank in range(MAX_FILES)]
    part = offered(dict.fromkeys(ranks, b"x\n" * (TAIL_BYTES // 2)), {}, (), dict.fromkeys(ranks, RANK_FILE))
    assert time.thread_time() - began < 0.2
    assert len(part.files) == MAX_FILES
    line = b"x\n" * (MAX_TRIED_LINES - 2)
    assert last_operation(LINE + line).startswith("AllReduce")
    assert last_operation(LINE + line + b"x\n") == ""


class Reader:
    """Stands in for a directory's reader; without ``said`` it hangs until the test sets ``gate``."""

    def __init__(self, path: str, said: bytes | None) -> None:
        self.path = path
        self.thread = OwnThread(path)
        self.gate = threading.Event()
        self._said = said

    async def last_lines(self, files: Mapping[str, RankFile]) -> dict[str, bytes]:
        if self._said is None:
            await self.thread.call(lambda: self.gate.wait(60))
            raise OSError("late")
        return dict.fromkeys(files, self._said)


async def test_a_directory_that_hangs_costs_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one directory hangs, the part has the files of the other directories and names the hanging directory."""
    monkeypatch.setattr(watched_directory, "ENDS_SECONDS", 0.1)
    readers = [Reader("/lustre", None), Reader("/local", LINE)]
    try:
        result, unread = await watched_directory.last_lines(readers, {"0": RANK_FILE})  # type: ignore[arg-type]  # stand for slots
    finally:
        readers[0].gate.set()
    part = offered(result, {}, unread, {"0": RANK_FILE})
    assert part.files == {"rank-0.jsonl": LINE, "unread.txt": b"/lustre does not answer\n"}
    assert [word.says for word in part.words] == ["last completed AllReduce no. 812, 8388608 bytes, in world"]
    assert await watched_directory.last_lines([], {}) == ({}, [])


def test_the_part_names_ranks_of_the_job_alone() -> None:
    """The part has one file for each rank of the job, and blames no rank."""
    labels = {
        (WriterKey(1, 2, 0, "here", 3), "c", 0): RankLabel("7", "0"),
        (WriterKey(1, 9, 0, "here", 4), "c", 1): RankLabel("8", "0"),
    }
    assert files_of(labels, "7") == {"0": RANK_FILE}
    part = offered({"0": LINE}, {}, (), {"0": RANK_FILE})
    assert (part.files, [(word.rank, word.blames) for word in part.words]) == ({"rank-0.jsonl": LINE}, [("0", False)])


def test_each_rank_of_a_process_has_its_own_last_operation() -> None:
    """If a process has several ranks, each rank gets the file and its own last operation."""
    labels = {(WriterKey(1, 2, 0, "here", 3), "abc", rank): RankLabel("7", str(rank)) for rank in (2, 3)}
    bare = b'{"coll_perf": ' + LINE.partition(b'"coll_perf": ')[2]
    second = LINE.replace(b'"rank": 3', b'"rank": 2').replace(b"812", b"811")
    part = offered(dict.fromkeys(("2", "3"), LINE + second + bare), {}, (), files_of(labels, "7"))
    assert [(word.rank, word.says[15:32]) for word in part.words] == [
        ("2", "AllReduce no. 811"),
        ("3", "AllReduce no. 812"),
    ]
    assert list(part.files) == ["rank-2.jsonl", "rank-3.jsonl"]


async def test_failed_hardware_blames_the_ranks_on_it() -> None:
    """A failed check that counts for ranks blames only the GPU's rank; every failed check is an event."""
    clock = FakeClock()
    ledger = HealthLedger(clock)
    checks = ledger.of("test")
    checks.latch(Subject("gpu", "GPU-1"), "gpu_xid")
    checks.latch(Subject("gpu", "GPU-2"), "gpu_row_remap_pending")
    ranks = RankTable(clock, "here", settle_at_once=True)
    for rank in range(2):
        known = {"RANK": str(rank), "WORLD_SIZE": "2", "SLURM_JOB_ID": "7"}
        ranks.observe_process(ProcessFacts(ProcessKey(rank + 10, 5), 1.0, rank + 10, "ann", "thread", known))
    ranks.tick()
    for number, process in enumerate(ranks.running().values(), start=1):
        process.gpus = (RankGpu(number, f"GPU-{number}", "", ""),)
    result = HealthSnapshot(ranks.snapshot(), ledger.entries(), frozenset({"gpu_xid"}))
    part = await health_part(lambda: result, Wanted("7", {}, ()))
    assert [(word.rank, word.says) for word in part.words] == [
        ("0", "runs on hardware that has failed: gpu_xid of gpu GPU-1")
    ]
    assert sorted(event.what for event in part.events) == [
        "gpu_row_remap_pending of gpu GPU-2 failed",
        "gpu_xid of gpu GPU-1 failed",
    ]
    assert b'"check": "gpu_xid"' in part.files["ledger.json"]
    assert not (await health_part(lambda: result, Wanted("8", {}, ()))).words
    assert struck_ranks(lambda: result, ledger.has_failed) == {RankLabel("7", "0"): "gpu_xid of gpu GPU-1"}
    assert struck_ranks(lambda: result, lambda: False) == {}


def test_lateness_in_words() -> None:
    """A rank is mentioned if it was late for 3 % of the last minute, and blamed from 10 % on."""
    shares = {"0": 0.0299, "1": SHOWN_SHARE, "2": 0.0999, "3": BLAMED_SHARE, "4": 0.5}
    words = [(word.rank, word.says.split()[5], word.blames) for word in offered({}, shares, (), {}).words]
    assert words == [("1", "3%", False), ("2", "10%", False), ("3", "10%", True), ("4", "50%", True)]


def shown_log(job: str = "7", **more: Any) -> ShownLog:
    """Return the log exporter's results for a job."""
    known = {"events": {}, "root": None, "cascade": None, "positions": (), "progress": TrainingProgress()} | more
    return ShownLog(job_id=job, **known)


def test_the_logs_first_cause() -> None:
    """The first cause in the job's log is an event, and blames the rank that the log names."""
    named = FirstEvent("cuda_out_of_memory", "3", "gpu-7", 5.0)
    counted = {("3", "cuda_out_of_memory", "root"): 2}
    part = log_part([shown_log("8"), shown_log(root=named, events=counted)], {}, Wanted("7", {}, ()))
    assert [(word.rank, word.witness, word.blames) for word in part.words] == [("3", "job_log", True)]
    [event] = part.events
    assert (event.at, event.rank) == (5.0, "3")
    assert event.what == "first cause in the job's log: cuda out of memory on gpu-7"
    rows = msgspec.json.decode(part.files["log.json"])
    assert rows == [{"rank": "3", "category": "cuda_out_of_memory", "role": "root", "lines": 2}]
    unknown = log_part([shown_log(root=FirstEvent("ib_retry", UNKNOWN_RANK, "", 5.0))], {}, Wanted("7", {}, ()))
    assert (unknown.words, unknown.events[0].rank) == ([], "")
    assert log_part([shown_log("8")], {}, Wanted("7", {}, ())).files == {}


def test_a_failed_check_is_the_cause_once_its_rank_has_run() -> None:
    """A check is a cause if it failed more than OLD_FAULT_SECONDS after the rank's start; an Xid has its number."""
    clock = FakeClock()
    ledger, ranks = HealthLedger(clock), RankTable(clock, "here", settle_at_once=True)
    started = clock.time()
    known = {"RANK": "0", "WORLD_SIZE": "1", "SLURM_JOB_ID": "7"}
    ranks.observe_process(ProcessFacts(ProcessKey(10, 5), started, 10, "ann", "thread", known))
    ranks.tick()
    (process,) = ranks.running().values()
    process.gpus = (RankGpu(0, "GPU-1", "", ""),)
    checks = ledger.of("test")

    def causes_now(faults: tuple[GpuFault, ...] = ()) -> dict[RankLabel, str]:
        result = HealthSnapshot(ranks.snapshot(), ledger.entries(), frozenset({"gpu_xid", "gpu_ecc"}), faults)
        return dict(causes(lambda: result, ledger.has_failed))

    clock.advance(OLD_FAULT_SECONDS)
    checks.latch(Subject("gpu", "GPU-1"), "gpu_ecc")
    assert causes_now() == {}
    clock.advance(1.0)
    checks.latch(Subject("gpu", "GPU-1"), "gpu_xid")
    faults = tuple(  # in their order of importance; Xid 31 is of a program, and fails no check
        GpuFault("0", "GPU-1", "", TimedFault(judge("nvidia", DriverReport(code)).fault, clock.time()))
        for code in ("79", "74", "31")
    )
    expected_causes = ((faults, "xid_79"), (faults[1:], "xid_74"), (faults[2:], "gpu_xid"), ((), "gpu_xid"))
    for known_faults, expected in expected_causes:
        assert causes_now(known_faults) == {RankLabel("7", "0"): expected}
    assert (cause("xid_79"), cause("xid_1000")) == ("xid_79", "")
