"""The simulated job's files: lines, pieces, ring."""

import json
import os
from pathlib import Path

import pytest

from agent.simulate.layout import SimulatedCommunicator
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
    """Given the same facts, a line is byte for byte what the real plugin wrote."""
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


@pytest.mark.parametrize(("added", "kept"), [(1023, 1023), (1024, 1024), (1025, 1024), (3000, 1024)])
def test_the_ring_drops_the_oldest(added: int, kept: int) -> None:
    """Beyond 1024 records the oldest are lost, which leaves a gap in the sequence numbers, and are counted."""
    assert RING_RECORDS == 1024
    log = log_of(added)
    assert [record.sequence for record in log.drain()] == list(range(added - kept, added))
    assert (log.overflowed, log.written) == (added - kept, {("AllReduce", 16384): kept})
    assert log.drain() == []


@pytest.mark.parametrize("records", [0, 1, 9, 10, 200])
def test_long_output_is_cut_into_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Output goes out in writes of 4096 bytes and a tail; together they are whole lines; nothing writes nothing."""
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
