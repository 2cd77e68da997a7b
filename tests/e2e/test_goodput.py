"""What GPUs' time goes into, by the shipped rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_day import GPUS, MINUTES, made_day
from rules import DEPLOY, promtools, run_promtool, values, why_no_promtool, write_case

pytestmark = pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")

WHOLE_SECONDS = 60.0 * (MINUTES - 1) * GPUS
CLASSES = {"not_started", "down", "recomputing", "checkpointing", "stalled", "waiting", "productive"}


@pytest.mark.parametrize("promtool", promtools())
def test_a_made_up_day(tmp_path: Path, promtool: str) -> None:
    """Each class has its share of a day of crashes, saves and stalls within five thousandths, and all is counted."""
    day = made_day()
    assert day.gpu_seconds.keys() == CLASSES
    counted, busy = "sum(sum_over_time(job:rankwatch_gpus:count[1d]))", "job:rankwatch_gpus_busy:count"
    shares = {name: f'sum(sum_over_time({busy}{{class="{name}"}}[1d]))' for name in CLASSES - {"waiting"}}
    shares["waiting"] = f"({counted} - sum(sum_over_time({busy}[1d])))"
    asked = {f"60 * {shares[name]} - {seconds}": 0.005 for name, seconds in day.gpu_seconds.items()}
    asked[f"60 * {counted} - {WHOLE_SECONDS}"] = 0.002
    tests = [
        {
            "expr": f"abs({difference}) < bool {error * WHOLE_SECONDS}",
            "eval_time": f"{MINUTES - 1}m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for difference, error in asked.items()
    ]
    case = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values(found)} for key, found in day.series.items()],
        "promql_expr_test": tests,
    }
    file = write_case(
        tmp_path, [case], "1m", [DEPLOY / "rules" / "goodput.yml"], ["rankwatch-goodput", "rankwatch-goodput-low"]
    )
    assert run_promtool(promtool, "test", "rules", file) == ""
