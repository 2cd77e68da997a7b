"""Who came last, worked out from a table of all records, apart from the code under test."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

SLACK = 64
Late = dict[tuple[str, str, int], list[int]]
"""Last arrivals and lateness in microseconds by communicator, collective and rank in it."""


class Found(NamedTuple):
    """What was matched: by rank, and by communicator and collective [matched, unmatched, floor, spread]."""

    late: Late
    communicators: dict[tuple[str, str], list[int]]

    def share_last(self, comm: str) -> list[float]:
        """The share of a communicator's operations to which each rank came last."""
        matched = sum(own[0] for (own_comm, _), own in self.communicators.items() if own_comm == comm)
        last: Counter[int] = Counter()
        for (own_comm, _, rank), (arrivals, _) in self.late.items():
            if own_comm == comm:
                last[rank] += arrivals
        return [last[rank] / matched for rank in sorted(last)]

    def floor(self, comm: str, collective: str) -> float:
        """Mean microseconds."""
        matched, _, floor = self.communicators[comm, collective]
        return floor / matched


def worked_out(directory: Path) -> Found:
    """The same from a table of all records: who is last is told by kernel times alone."""
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
    return Found(dict(late), dict(communicators))
