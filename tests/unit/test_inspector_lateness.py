from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from inspector_expected import unpacked
from inspector_reading import make, read
from inspector_records import DATA

TP, OTHER_TP, DP = "82bdbf0ea6cd18", "8a3facf16d62aa", "1fa4c2eba3da83"


def matched(directory: Path) -> Matched:
    """Return the reader's results for a directory."""
    late: Late = defaultdict(lambda: [0, 0])
    communicators: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    every = (item for writer in read(make(directory)).writers for item in writer.totals.items())
    for key, own in ((key, sums.arrivals) for key, sums in every if sums.arrivals is not None):
        for index, value in enumerate((own.last, own.lateness_us)):
            late[key.comm, key.collective, key.comm_rank][index] += value
        if key.comm_rank == 0:
            for index, value in enumerate((own.matched, own.unmatched, own.floor_us)):
                communicators[key.comm, key.collective][index] += value
    return Matched(dict(late), dict(communicators))


def without(directory: Path, scratch: Path, rank: int, share: float) -> Path:
    """Copy the records without a random share of one rank's records."""
    chance = random.Random(20)  # noqa: S311  the same records every time
    for path in sorted(directory.glob("*.log")):
        lines = path.read_text().splitlines(keepends=True)
        is_rank = next(json.loads(text)["header"]["rank"] for text in lines if f'"0x{DP}' in text) == rank
        written = [text for text in lines if not is_rank or chance.random() >= share]
        (scratch / path.name).write_text("".join(written))
    return scratch


@pytest.mark.parametrize("folder", ["late_tp", "late_nic", "late_nobody"])
def test_lateness_adds_up_exactly(folder: str, tmp_path: Path) -> None:
    """The lateness in real records equals the sum over a table of all operations."""
    directory = unpacked(DATA / folder, tmp_path)
    assert matched(directory) == worked_out(directory)


@pytest.mark.parametrize("share_lost", [0.0, 0.5])
def test_the_late_rank_is_named(share_lost: float, tmp_path: Path) -> None:
    """A rank that computes 2 ms longer is last in over 95 % of the operations, even if half of its records are lost."""
    directory = without(unpacked(DATA / "late_tp", tmp_path), tmp_path, 2, share_lost)
    late = matched(directory)
    assert late.share_last(TP)[2] > 0.95
    assert all(share < 0.02 for rank, share in enumerate(late.share_last(TP)) if rank != 2)
    assert late.share_last(DP)[2] > 0.9
    assert all(share < 0.03 for rank, share in enumerate(late.share_last(DP)) if rank != 2)
    assert max(late.share_last(OTHER_TP)) < 0.35


SLACK = 64
Late = dict[tuple[str, str, int], list[int]]
"""Last arrivals and lateness in microseconds by communicator, collective and rank."""


class Matched(NamedTuple):
    """Results of matching: by rank, and by communicator and collective [matched, unmatched, floor in microseconds]."""

    late: Late
    communicators: dict[tuple[str, str], list[int]]

    def share_last(self, comm: str) -> list[float]:
        """Return, for each rank, the share of a communicator's operations to which the rank came last."""
        matched = sum(own[0] for (own_comm, _), own in self.communicators.items() if own_comm == comm)
        last: Counter[int] = Counter()
        for (own_comm, _, rank), (arrivals, _) in self.late.items():
            if own_comm == comm:
                last[rank] += arrivals
        return [last[rank] / matched for rank in sorted(last)]


def worked_out(directory: Path) -> Matched:
    """Compute the results from a table of all records, in which kernel times alone decide the last rank."""
    kinds: dict[tuple[str, str, int, int], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for path in directory.glob("*.log"):
        for text in path.read_text().splitlines():
            record = json.loads(text)
            header, perf = record["header"], record["coll_perf"]
            if perf["coll"] in ("AllReduce", "AllGather", "ReduceScatter"):
                comm = header["id"].removeprefix("0x")[:14]
                kind = kinds[comm, perf["coll"], header["n_ranks"], perf["coll_msg_size_bytes"]]
                kind[perf["coll_sn"]][header["rank"]] = perf["coll_exec_time_us"]
    late: Late = defaultdict(lambda: [0, 0])
    communicators: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (comm, collective, n_ranks, _), operations in kinds.items():
        passed = min(max(number for number, row in operations.items() if rank in row) for rank in range(n_ranks))
        total = communicators[comm, collective]
        for number, row in operations.items():
            if len(row) < n_ranks:
                total[1] += number < passed - SLACK
                continue
            ordered = sorted(row.values())
            lead = ordered[1] - ordered[0]
            for index, value in enumerate((1, 0, ordered[0])):
                total[index] += value
            for rank, time in row.items():
                is_last = time == ordered[0] and lead > 2 and lead > ordered[0] / 100
                late[comm, collective, rank][0] += is_last
                late[comm, collective, rank][1] += lead * is_last
    return Matched(dict(late), dict(communicators))
