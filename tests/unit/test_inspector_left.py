"""What becomes of operations that wait for a rank whose process is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspector_records import line
from test_inspector_exporter import Bench

UNMATCHED = "rankwatch_communicator_unmatched_operations_total"
MATCHED = "rankwatch_communicator_matched_operations_total"
ALL_REDUCE = ("job", "abc", "AllReduce", "8192")


def write(path: Path, pid: int, *numbers: int) -> None:
    """Records of one of the communicator's two ranks."""
    with (path / f"here-pid{pid}.log").open("ab") as log:
        log.write(b"".join(line(sn, pid=pid, rank=pid - 7, n_ranks=2) for sn in numbers))


@pytest.mark.parametrize("gone", [7, 8])
def test_what_waits_for_a_rank_that_is_gone_is_unmatched(tmp_path: Path, gone: int) -> None:
    """What the others did without it is counted as soon as its file is read to the end, not when its writer expires."""
    for pid in (7, 8):
        (tmp_path / f"here-pid{pid}.log").touch()
    bench = Bench(tmp_path).start()
    bench.look()
    write(tmp_path, gone, 0)
    write(tmp_path, 15 - gone, 0, 1, 2)
    values = bench.look()
    assert (values[MATCHED], values[UNMATCHED]) == ({ALL_REDUCE: 1}, {ALL_REDUCE: 0})
    bench.ranks.left = {writer_key for writer_key, *_ in bench.ranks.observed if writer_key.pid == gone}
    write(tmp_path, gone, 1)  # the last that it wrote, not read yet
    bench.look()
    values = bench.look()
    assert (values[MATCHED], values[UNMATCHED]) == ({ALL_REDUCE: 2}, {ALL_REDUCE: 1})
    bench.ranks.expired = bench.ranks.left
    bench.look()
    values = bench.look()
    if gone == 8:  # with rank 0 its communicator's counters go
        assert (values[MATCHED], values[UNMATCHED]) == ({ALL_REDUCE: 2}, {ALL_REDUCE: 1})
    bench.drain()


def test_what_waits_for_an_expired_writer_is_unmatched(tmp_path: Path) -> None:
    """A writer that is let go without a word of its process leaves nothing that waits for it uncounted."""
    for pid in (7, 8):
        (tmp_path / f"here-pid{pid}.log").touch()
    bench = Bench(tmp_path).start()
    bench.look()
    write(tmp_path, 8, 0)
    write(tmp_path, 7, 0, 1, 2)
    bench.look()
    bench.ranks.expired = {writer_key for writer_key, *_ in bench.ranks.observed if writer_key.pid == 8}
    bench.look()
    assert bench.look()[UNMATCHED] == {ALL_REDUCE: 2}
    bench.drain()
