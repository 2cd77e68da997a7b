"""Measures the dashboards' queries at 8,000 ranks, 4,096 of them in one job; prints a table by dashboard.

.venv/bin/python tests/bench/bench_dashboards.py [PICTURE.png]

Also draws the Job dashboard of the large job. Prometheus does nothing else during the queries. Takes twelve minutes and
6 GiB; run on a quiet machine."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / place) for place in ("tests/nvmlstub", "tests/unit", "tests/e2e", "tests/bench", ".")]

from bench_fleet import MINUTES, address, fleet  # noqa: E402  # likewise
from browser import Browser  # noqa: E402  # after the change of the path
from drawn import bundle, draw  # noqa: E402  # likewise
from prometheus import Prometheus  # noqa: E402  # likewise
from test_dashboard_queries import DASHBOARDS, Target, fill, targets  # noqa: E402  # likewise

LARGE_JOB_NODES = 512
STEPS = 60
"""Steps of a query over MINUTES: as many as one hour has at the rules' interval."""
REPEATS = 3
SLOW_SECONDS = 1.0


def ask(server: Prometheus, target: Target, end: float) -> tuple[float, list[dict[str, Any]]]:
    """Return a query's median time in seconds, and its result."""
    variables = {"job_id": "base0", "rank": "5", "node": address(1), "cluster": ".*"}
    grafana = {"$__range": f"{MINUTES}m", "$__rate_interval": "1m"}
    expression = target.expression
    for name, value in grafana.items():
        expression = expression.replace(name, value)
    expression = fill(expression, variables)
    took = []
    answer: list[dict[str, Any]] = []
    for _ in range(REPEATS):
        began = time.monotonic()
        if target.instant:
            answer = server.query(expression, round(1000 * end))
        else:
            answer = server.query_range(expression, MINUTES * 60, MINUTES * 60 // STEPS, end)
        took.append(time.monotonic() - began)
    return statistics.median(took), answer


def main(picture: Path | None) -> None:
    """Print the table; draw the Job dashboard into ``picture``."""
    with fleet(LARGE_JOB_NODES) as server:
        time.sleep(MINUTES * 60)
        end = time.time()
        server.rest()
        asked = [(target, *ask(server, target, end)) for target in targets()]
    print("| dashboard | queries | median | slowest | above 1 s |\n|---|---|---|---|---|")
    for path in DASHBOARDS:
        took = [(seconds, target.panel["title"]) for target, seconds, _ in asked if target.dashboard == path.stem]
        longest = max(took)
        slow = sum(seconds > SLOW_SECONDS for seconds, _ in took)
        median = statistics.median(seconds for seconds, _ in took)
        print(f"| {path.stem} | {len(took)} | {median:.2f} s | {longest[0]:.2f} s ({longest[1]}) | {slow} |")
    for target, seconds, answer in sorted(asked, key=lambda each: -each[1])[:20]:
        print(f"{seconds:.2f} s, {len(answer)} series: {target.dashboard}, {target.panel['title']} {target.ref}")
    if picture is not None:
        results = {f"{each.panel['id']}:{each.ref}": answer for each, _, answer in asked if each.dashboard == "job"}
        with tempfile.TemporaryDirectory() as name, Browser(Path(name)) as browser:
            span = (end - MINUTES * 60, end, MINUTES * 60 / STEPS)
            dashboard = json.loads((ROOT / "grafana" / "dashboards" / "job.json").read_text())
            print(draw(browser, bundle(Path(name)), dashboard, results, span, light=False, picture=picture))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
