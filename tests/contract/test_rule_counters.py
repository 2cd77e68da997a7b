"""What the rules ask of counters is shown by default."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from exporters.rdma.families import TELLING, TELLING_OF_DRIVER

THRESHOLDS = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/thresholds.yml").read_text())


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [
        ("link_error_counters", TELLING),
        ("retransmit_counters", TELLING_OF_DRIVER),
        ("retransmitted_packets", TELLING_OF_DRIVER),
        ("sent_packets", TELLING_OF_DRIVER),
    ],
)
def test_counters_of_the_rules_are_shown(threshold: str, shown: frozenset[str]) -> None:
    """Each RDMA counter that an alert's threshold names has a series without asking for all_counters."""
    names = "".join(THRESHOLDS[threshold].split()).split("|")
    assert names
    assert set(names) <= shown
