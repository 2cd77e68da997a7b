"""The simulated job: times of its operations, and the lines, writes and ring of its files."""

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from agent.simulate.job import Job
from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.physics import TimingPlan, make_plan, step_times
from agent.simulate.writer import (
    PIECE_BYTES,
    RING_RECORDS,
    CommunicatorLog,
    InspectorFile,
    SimulatedRecord,
    line_end,
    line_middle,
    line_start,
)

CAPTURED = Path(__file__).parents[1] / "data/simulate/records.log"
PAIR = SimulatedCommunicator("world", "world", 0xABC, (4, 9), 1, network=False)


@pytest.mark.parametrize("captured", CAPTURED.read_text().splitlines(keepends=True))
def test_lines_equal_the_plugins(captured: str) -> None:
    """A simulated line equals the real plugin's line with the same facts, byte for byte."""
    header, metadata, perf = (json.loads(captured)[key] for key in ("header", "metadata", "coll_perf"))
    communicator = SimulatedCommunicator(
        "tp", header["comm_name"], int(header["id"], 16), tuple(range(header["n_ranks"])), header["nnodes"],
        network=False,
    )  # fmt: skip
    record = SimulatedRecord(perf["coll"], perf["coll_sn"], perf["coll_msg_size_bytes"], perf["coll_exec_time_us"])
    made = (
        line_start(communicator, header["rank"])
        + str(metadata["dump_timestamp_us"])
        + line_middle(metadata["hostname"], metadata["pid"])
        + line_end(record, header["n_ranks"])
    )
    assert made == captured


def log_of(records: int) -> CommunicatorLog:
    """Return rank 9's log with ``records`` operations."""
    log = CommunicatorLog(PAIR, 9)
    for sequence in range(records):
        log.add(SimulatedRecord("AllReduce", sequence, 16384, 100))
    return log


@pytest.mark.parametrize(("added", "in_ring"), [(1023, 1023), (1024, 1024), (1025, 1024), (3000, 1024)])
def test_the_ring_drops_the_oldest(added: int, in_ring: int) -> None:
    """Beyond 1,024 records the oldest are lost and counted; the sequence numbers then have a gap."""
    assert RING_RECORDS == 1024
    log = log_of(added)
    assert [record.sequence for record in log.drain()] == list(range(added - in_ring, added))
    assert (log.overflowed, log.written) == (added - in_ring, {("AllReduce", 16384): in_ring})
    assert log.drain() == []


@pytest.mark.parametrize("records", [0, 1, 9, 10, 200])
def test_long_output_is_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Output is written in pieces of 4096 bytes and a rest, which join to whole lines; empty output needs no write."""
    written: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(len(data)) or write(fd, data))
    file = InspectorFile(str(tmp_path), "host", 17)
    file.dump([log_of(records)])
    file.close()
    data = (tmp_path / "host-pid17.log").read_bytes()
    assert written == [4096] * (len(data) // 4096) + ([len(data) % 4096] if len(data) % 4096 else [])
    assert PIECE_BYTES == 4096
    lines = data.decode().splitlines()
    assert [json.loads(line)["coll_perf"]["coll_sn"] for line in lines] == list(range(records))
    assert file.bytes_written == len(data)
    if lines:
        assert (json.loads(lines[0])["header"]["rank"], json.loads(lines[0])["metadata"]["pid"]) == (1, 17)


STEPS = 40
TP_OPERATIONS = range(5)
DP_OPERATIONS = (5, 6)


JOB = Job("", "", ranks=8, hosts=2, tp=4, job_id="7", seed=1, records_per_second=100.0)


def plan(**more: Any) -> TimingPlan:
    """Return a plan of eight ranks on two hosts, with TP 4."""
    return make_plan(JOB._replace(**more))


def means_us(of: TimingPlan, position: int, first: int = 0) -> list[float]:
    """Return each rank's mean kernel time of a step's operation number ``position``."""
    steps = [step_times(of, step).operations[position].kernel_us for step in range(first, first + STEPS)]
    return [mean(kernel_us[rank] for kernel_us in steps) for rank in range(8)]


def test_the_straggler_has_the_shortest_time() -> None:
    """In its TP group the late rank's kernels are the shortest, and its peers wait for the whole delay."""
    late = plan(straggler=2, straggler_delay_us=2000.0)
    for position in TP_OPERATIONS:
        means = means_us(late, position)
        assert min(means) == means[2]
        assert all(means[rank] - means[2] == pytest.approx(2000, abs=150) for rank in (0, 1, 3))
        assert max(means[4:]) < 500  # the other host's group does not wait


def test_a_slow_link_raises_the_floor_of_all_who_use_it() -> None:
    """A slow link more than doubles the kernel times of its DP group; the times of the other groups stay the same."""
    healthy, slow = plan(), plan(slow_link=6, slow_link_factor=3.0)
    for position in DP_OPERATIONS:
        before, after = means_us(healthy, position), means_us(slow, position)
        assert [after[rank] / before[rank] > 2 for rank in range(8)] == [False, False, True, False] * 2
    assert means_us(slow, 0) == pytest.approx(means_us(healthy, 0))


@pytest.mark.parametrize("records_per_second", [1.0, 50.0, 1000.0, 20000.0])
def test_the_asked_rate_comes_out(records_per_second: float) -> None:
    """Paced steps give the requested rate of records within a percent; up to 500 records a second, the durations are
    not shortened."""
    made = plan(records_per_second=records_per_second)
    seconds = sum(step_times(made, step).duration_us for step in range(100, 300)) * made.pace / 1e6
    assert 200 * 8 / seconds == pytest.approx(records_per_second, rel=0.01)
    if records_per_second <= 500:
        assert made.pace == pytest.approx(1.0, abs=0.05)
