"""Recorded hangs of 16 ranks on two nodes, from the files to the names of the blocking ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_dumps import recorded
from rules import DEPLOY, promtools, run_promtool, why_no_promtool, write_case

from agent.sdk.ranks import RankLabel
from exporters.flight_recorder.dump import read_dump
from exporters.flight_recorder.registry import FlightSnapshot, ShownDump, render

RULES = DEPLOY / "rules/hangs.yml"
PER_NODE = 8
EXPRESSION = "count by (rank, what) (rank:rankwatch_flight_recorder_behind:sequence)"

pytestmark = pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")


def series_of(scenario: str) -> list[dict[str, str]]:
    """Return the series of both nodes' agents."""
    found = []
    for rank, raw in recorded(scenario).items():
        summary = read_dump(raw, rank)
        assert summary is not None
        snapshot = FlightSnapshot((ShownDump(RankLabel("7", str(rank)), 0.0, summary),))
        for metric in render(snapshot):
            for labels, value in zip(metric.labels, metric.values, strict=True):
                pairs = [*zip(metric.family.labels, labels, strict=True), ("node", f"n{rank // PER_NODE}")]
                text = ",".join(f'{name}="{label}"' for name, label in pairs)
                found.append({"series": f"{metric.family.name}{{{text}}}", "values": f"{value:.0f}x4"})
    return found


@pytest.mark.parametrize("promtool", promtools())
@pytest.mark.parametrize(("scenario", "culprits"), [
    ("gpu_error_1st", {"12": ("not_begun", 5), "14": ("not_finished", 5)}),
    ("lock_gil_1st", {"9": ("not_begun", 3), "14": ("not_begun", 3)}),
])  # fmt: skip
def test_who_held_the_others_up(
    scenario: str, culprits: dict[str, tuple[str, int]], promtool: str, tmp_path: Path
) -> None:
    """For each waiting process group the rules name only the ranks with the hung GPU or program."""
    samples = [
        {"labels": f'{{rank="{rank}",what="{what}"}}', "value": groups} for rank, (what, groups) in culprits.items()
    ]
    test = {
        "interval": "15s",
        "input_series": series_of(scenario),
        "promql_expr_test": [{"expr": EXPRESSION, "eval_time": "1m", "exp_samples": samples}],
    }
    file = write_case(tmp_path, [test], "15s", [RULES], ["rankwatch-hangs-slow", "rankwatch-hangs"])
    assert run_promtool(promtool, "test", "rules", file) == ""
