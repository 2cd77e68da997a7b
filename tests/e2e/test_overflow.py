"""Records that the plugin's ring lost, from its file to the alert, for rings of every size.

The recordings have rings of 1024 alone. Those here are filled and written as the plugin of NCCL 2.30 does it: every
INTERVAL_SECONDS all that a ring holds, its lines some microseconds apart; the oldest record goes when it is full.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from inspector_records import line
from recordings import FIRST_PID, HOSTS, Record
from replays import EPOCH_US, JOB, play
from rules import GROUPS, RULES, promtools, run_promtool, why_no_promtool

from exporters.inspector.format.passes import DEFAULT_RING_LINES

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
RING_LINES = (128, 256, 1000, DEFAULT_RING_LINES)
INTERVAL_SECONDS = 20
LINE_US = 15
SECONDS = 16 * 60
LOSING, WHOLE = 0, 1
"""Two ranks of a communicator: the first one's ring is too small, the other one writes four times as often."""
COLLECTIVES = ("AllReduce", "AllGather", "AllReduce")
"""In one ring; each has numbers of its own."""
COMM = "abc"


class Ring:
    """One rank's ring: what it holds, and how many records of it were lost and written."""

    def __init__(self, rank: int, lines: int) -> None:
        self.lost = self.written = 0
        self._rank = rank
        self._lines: deque[tuple[str, int]] = deque(maxlen=lines)
        self._numbers: Counter[str] = Counter()

    def complete(self, operations: int) -> None:
        """So many operations are done."""
        for _ in range(operations):
            collective = COLLECTIVES[self._numbers.total() % len(COLLECTIVES)]
            self.lost += len(self._lines) == self._lines.maxlen
            self._lines.append((collective, self._numbers[collective]))
            self._numbers[collective] += 1

    def dump(self, time_us: int) -> Iterator[Record]:
        """Write all that it holds."""
        while self._lines:
            collective, number = self._lines.popleft()
            place = {"id": f"0x{COMM}", "rank": self._rank, "n_ranks": 2, "pid": FIRST_PID + self._rank}
            time = {"hostname": HOSTS[0], "dump_timestamp_us": time_us}
            self.written += 1
            yield Record(time_us, self._rank, line(number, coll=collective, **place, **time).decode())
            time_us += LINE_US


def passes(rings: list[Ring], per_interval: int) -> Iterator[Record]:
    """A job of ``per_interval`` operations in INTERVAL_SECONDS, in the order in which its records are written."""
    step_seconds = INTERVAL_SECONDS // 4
    for step in range(1, (SECONDS - 2 * INTERVAL_SECONDS) // step_seconds):
        time_us = EPOCH_US + step * step_seconds * 1_000_000
        for ring in rings:
            ring.complete(per_interval // 4)
        yield from rings[WHOLE].dump(time_us)
        if step % 4 == 0:
            yield from rings[LOSING].dump(time_us + 500_000)


@pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("lines", RING_LINES if FULL else RING_LINES[:1])
def test_an_overflow_is_told_from_file_to_alert(tmp_path: Path, lines: int) -> None:
    """Just what a full ring lost is missing, by overflow; RecordsLost says so, and of the one rank that lost it."""
    rings = [Ring(rank, lines) for rank in (LOSING, WHOLE)]
    settings = {} if lines == DEFAULT_RING_LINES else {"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE": str(lines)}
    series = play(passes(rings, lines * 5 // 4 // 4 * 4), 1, SECONDS, seed=f"{lines}", settings=settings)
    losing, whole = rings
    assert losing.lost > 10 * lines // 5
    assert whole.lost == 0
    missing = "rankwatch_inspector_missing_records_total"
    judged = {
        f"sum by (rank, cause) ({missing})": {
            f'{{rank="{LOSING}",cause="overflow"}}': losing.lost,
            f'{{rank="{LOSING}",cause="filtered_or_lost"}}': 0,
            f'{{rank="{WHOLE}",cause="overflow"}}': 0,
            f'{{rank="{WHOLE}",cause="filtered_or_lost"}}': 0,
        },
        "sum by (rank) (rankwatch_inspector_seen_records_total)": {
            f'{{rank="{LOSING}"}}': losing.written,
            f'{{rank="{WHOLE}"}}': whole.written,
        },
        "sum by (job_id, comm) (rankwatch_communicator_lost_operations_total)": {
            f'{{job_id="{JOB}",comm="{COMM}"}}': losing.lost
        },
        'group by (job_id, cause) (max_over_time(ALERTS{alertname="RecordsLost",alertstate="firing"}[1h]))': {
            f'{{job_id="{JOB}",cause="overflow"}}': 1
        },
        f'count by (rank, cause) (rate({missing}{{job_id="{JOB}"}}[5m]) > 0)': {
            f'{{rank="{LOSING}",cause="overflow"}}': 1
        },
    }
    test = {
        "name": f"{lines} lines",
        "interval": "1s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{SECONDS}s",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
            for expr, expected in judged.items()
        ],
    }
    file = tmp_path / "test.yml"
    whole_file = {
        "rule_files": list(map(str, RULES)),
        "evaluation_interval": "30s",
        "group_eval_order": GROUPS,
        "tests": [test],
    }
    file.write_text(json.dumps(whole_file))  # JSON is YAML
    assert [said for promtool in promtools()[:1] if (said := run_promtool(promtool, "test", "rules", file))] == []
