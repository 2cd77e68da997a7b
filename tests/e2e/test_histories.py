"""Random histories of jobs, evaluated by the agents' real code, the rules and promtool."""

from __future__ import annotations

from pathlib import Path

import pytest
from full import FULL
from histories import differences
from prometheus import why_no_prometheus

SEEDS = range(1, 41 if FULL else 4)
pytestmark = pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
def test_alerts_of_a_random_history(seed: int, tmp_path: Path) -> None:
    """Exactly the alerts fire that docs/ends.md promises, in time and without a gap."""
    text = differences(seed, tmp_path)
    assert not text, text
