"""What the rules ask of counters is shown by default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporters.rdma.families import COUNTER, HARDWARE_COUNTER, TELLING, TELLING_OF_DRIVER

RULES = Path(__file__).parents[2] / "deploy/prometheus/rules"


@pytest.mark.parametrize(
    ("family", "shown"), [(COUNTER.name, TELLING), (HARDWARE_COUNTER.name, TELLING_OF_DRIVER)], ids=("link", "driver")
)
def test_counters_of_the_rules_are_shown(family: str, shown: frozenset[str]) -> None:
    """Each RDMA counter of a rule has a series without all_counters."""
    rules = "".join(path.read_text() for path in RULES.glob("*.yml"))
    selectors = re.findall(family + r'\{counter=~?"([^"]+)"', rules)
    assert len(selectors) == rules.count(family) > 0
    named = {name for selector in selectors for name in selector.split("|")}
    assert {name for name in named if not any(re.fullmatch(name, pattern) for pattern in shown)} == set()
