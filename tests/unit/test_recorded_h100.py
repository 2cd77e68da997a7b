"""Output of programs on a real GPU, see tests/data/h100: each reader gives the known facts."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from job_log_jobs import classify, job
from kernel_log_node import Node

from agent.sdk.ranks import UNKNOWN_RANK
from exporters.flight_recorder.dump import read_dump
from exporters.inspector_prom.text import parse
from exporters.job_log.tally import CASCADE_SECONDS, JobTally
from exporters.ras.report.json_report import read_json

DATA = Path(__file__).parents[1] / "data/h100"


@pytest.mark.parametrize(("log", "category", "rank"), [
    ("illegal_access", "cuda_illegal_access", "2"),
    ("assertion", "cuda_assert", "0"),
    ("out_of_memory", "cuda_oom", "3"),
])  # fmt: skip
def test_the_first_cause_in_a_log(log: str, category: str, rank: str) -> None:
    """In the output of torchrun and four ranks at a death, the first cause is the error of the failed rank."""
    shown = tally_of(log).shown(1000.0 + CASCADE_SECONDS)
    assert shown.root is not None
    assert (shown.root.category, shown.root.rank) == (category, rank)


def test_timeouts_are_no_cause() -> None:
    """The timeouts of watchdogs, and the abort after them, blame no rank, because the hanging rank prints nothing."""
    tally = tally_of("hang")
    assert tally.shown(1000.0 + CASCADE_SECONDS).root is None


def tally_of(log: str) -> JobTally:
    """Return the tally of a log of four ranks, with all lines written at one time."""
    tally = JobTally("4711", "here", lambda _: True)
    for line in (DATA / f"{log}.log").read_bytes().splitlines():
        if (event := classify(line)) is not None:
            tally.take(event, job(ranks=4), UNKNOWN_RANK, 1000.0)
    return tally


def test_dumps_of_a_hang() -> None:
    """Rank 2 had not started the AllReduce in which the others waited."""
    with tarfile.open(DATA / "flight_recorder.tar.xz") as archive:
        raw = {rank: archive.extractfile(f"trace_rank_{rank}") for rank in range(4)}
        dumps = {rank: read_dump(file.read(), rank) for rank, file in raw.items() if file is not None}
    waits = {rank: dump.groups[0].waits for rank, dump in dumps.items() if dump is not None}
    assert {rank: call and (call.sequence, call.operation) for rank, call in waits.items()} == {
        0: (133, "all_reduce"), 1: (133, "all_reduce"), 2: None, 3: (133, "all_reduce"),
    }  # fmt: skip


def test_a_report_of_ras() -> None:
    """All four ranks of the only communicator replied, and each launched 150 AllReduces."""
    report = read_json((DATA / "ras.json").read_bytes())
    [communicator] = report.communicators
    assert (report.version, communicator.size, communicator.responding, communicator.missing) == ("2.30.7", 4, 4, 0)
    assert communicator.launches is not None
    assert communicator.launches.extremes["AllReduce"] == (150, 150)


def test_means_of_two_ranks() -> None:
    """A file of format v5.1 gives bandwidth and time of both message sizes."""
    text = parse((DATA / "nccl_inspector_metrics.prom").read_bytes())
    assert (len(text.rows), +text.skipped) == (2, {})


async def test_errors_in_the_kernels_log() -> None:
    """Both Xids are events, although the driver marks them as fragments."""
    series = await Node(DATA / "kmsg").look()
    assert {key[2]: value for key, value in series.items() if key[:2] == ("kernel_events_total", "gpu_xid")} == {
        "31": 1.0, "43": 1.0,
    }  # fmt: skip
