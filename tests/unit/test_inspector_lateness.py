from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from inspector_expected import unpacked
from inspector_reading import make, read
from inspector_records import DATA

TP, OTHER_TP, DP = "82bdbf0ea6cd18", "8a3facf16d62aa", "1fa4c2eba3da83"


def shares_last(directory: Path) -> dict[str, list[float]]:
    """Return by communicator, for each rank, the share of operations to which the rank came last."""
    matched: Counter[str] = Counter()
    last: dict[str, Counter[int]] = defaultdict(Counter)
    for writer in read(make(directory)).writers:
        for key, total in writer.totals.items():
            if total.arrivals is not None:
                matched[key.comm] += total.arrivals.matched
                last[key.comm][key.comm_rank] += total.arrivals.last
    return {comm: [ranks[rank] / matched[comm] for rank in sorted(ranks)] for comm, ranks in last.items()}


def without(directory: Path, scratch: Path, rank: int, share: float) -> Path:
    """Copy the records without a random share of one rank's records."""
    chance = random.Random(20)  # noqa: S311  the same records every time
    for path in sorted(directory.glob("*.log")):
        lines = path.read_text().splitlines(keepends=True)
        is_rank = next(json.loads(text)["header"]["rank"] for text in lines if f'"0x{DP}' in text) == rank
        written = [text for text in lines if not is_rank or chance.random() >= share]
        (scratch / path.name).write_text("".join(written))
    return scratch


@pytest.mark.parametrize("share_lost", [0.0, 0.5])
def test_the_late_rank_is_named(share_lost: float, tmp_path: Path) -> None:
    """A rank that computes 2 ms longer is last in over 95 % of the operations, even if half of its records are lost."""
    late = shares_last(without(unpacked(DATA / "late_tp", tmp_path), tmp_path, 2, share_lost))
    assert late[TP][2] > 0.95
    assert all(share < 0.02 for rank, share in enumerate(late[TP]) if rank != 2)
    assert late[DP][2] > 0.9
    assert all(share < 0.03 for rank, share in enumerate(late[DP]) if rank != 2)
    assert max(late[OTHER_TP]) < 0.35
