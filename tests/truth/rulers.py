"""Rules for a site: its scrapes as promtool's input, its firing alerts from promtool's output."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from programs import DEPLOY, build
from site_of_agents import Series, Site

JUDGED = {"deaths.yml"}
"""The rule files that the truth table tests."""
STALLED = {"job:rankwatch_silence:seconds", "job:rankwatch_stalled:seconds", "JobStalled"}
"""The rules of hangs.yml that find hangs by records."""
USUAL = {("severity", "page"), ("job_id", "7"), ("cluster", "c1")}
REFUSED_SECONDS, TIMEOUT_SECONDS = 0.001, 4.0
READ = frozenset(
    {
        "rankwatch_exit_age_seconds", "rankwatch_job_ranks_live", "rankwatch_job_start_age_seconds",
        "rankwatch_job_progress_age_seconds", "rankwatch_job_longest_pause_seconds", "rankwatch_job_ended_age_seconds",
        "rankwatch_job_expected_ranks", "rankwatch_job_restarts_left", "rankwatch_job_proven",
        "rankwatch_start_age_seconds", "rankwatch_inspector_seen_records_total",
    }
)  # fmt: skip
"""The families that rules on deaths and STALLED read."""
PROMTOOL = Path("promtool")
VMALERT_TOOL = Path(__file__).parents[2] / ".cache/victoria-metrics/trixie/usr/bin/vmalert-tool"
"""VictoriaMetrics's counterpart of promtool: rules by MetricsQL."""
_TIME = re.compile(r"time: (\w+),")
_LABEL = re.compile(r'(\w+)=\\?"((?:[^"\\]|\\.)*?)\\?"')

Firing = dict[str, str]
"""The labels of a firing alert."""


def built(scratch: Path, interval: int, *, worst_order: bool, stalled: bool = False) -> list[Path]:
    """Write rule files for an interval into ``scratch``.

    ``worst_order``: a rule reads the series that another rule recorded at the previous evaluation. ``stalled``: also
    write the rules STALLED."""
    thresholds = {**build.read_thresholds(DEPLOY / "thresholds.yml", None), "interval": f"{interval}s"}
    files = build.build({path.name: path.read_text() for path in (DEPLOY / "sources").glob("*.yml")}, thresholds)
    judged = {name: yaml.safe_load(text)["groups"] for name, text in files.items() if name in JUDGED}
    if stalled:
        rules = yaml.safe_load(files["hangs.yml"])["groups"][0]["rules"]
        chosen = [rule for rule in rules if STALLED & {rule.get("record"), rule.get("alert")}]
        judged["hangs.yml"] = [{"name": "hangs", "rules": chosen}]
    for name, groups in judged.items():
        ordered = [{**group, "rules": group["rules"][:: -1 if worst_order else 1]} for group in groups]
        (scratch / name).write_text(yaml.dump({"groups": ordered}, sort_keys=False))
    return [scratch / name for name in judged]


def fired(
    sites: Sequence[Site], rules: list[Path], labels: Iterable[str], step: int = 5, ruler: Path = PROMTOOL
) -> dict[str, list[float]]:
    """Return the times of firing alerts, by the values of ``labels`` except USUAL ones."""
    seen: dict[str, list[float]] = {}
    for time, alerts in sorted(firing(sites, rules, rules[0].parent, step, ruler).items()):
        for alert in alerts:
            words = [alert[label] for label in labels if alert.get(label) and (label, alert[label]) not in USUAL]
            seen.setdefault(" ".join(words), []).append(time)
    return seen


def firing(
    sites: Sequence[Site], rules: list[Path], scratch: Path, step: int = 5, ruler: Path = PROMTOOL
) -> dict[int, list[Firing]]:
    """Return the firing alerts at each time, every ``step`` seconds, as ``ruler`` evaluates ``rules``."""
    end = int(max(max(pages) for site in sites for pages in site.scrapes.values()))
    questions = [
        {
            "expr": 'ALERTS{alertstate="firing"}',
            "eval_time": f"{time}s",
            "exp_samples": [{"labels": '{is="none"}', "value": 0}],  # wrong, so promtool prints the real ones
        }
        for time in range(0, end, step)
    ]
    test = {
        "interval": f"{step}s",
        "input_series": [series for site in sites for series in _input(site, end, step)],
        "promql_expr_test" if ruler == PROMTOOL else "metricsql_expr_test": questions,
    }
    return dict(_parsed(_judged(test, rules, scratch, step, ruler)))


def texts(sites: Sequence[Site], rules: list[Path], scratch: Path, alert: str, at: int, step: int = 5) -> str:
    """Return promtool's output with an alert's labels and annotations at a time; promtool prints unexpected alerts."""
    end = int(max(max(pages) for site in sites for pages in site.scrapes.values()))
    test = {
        "interval": f"{step}s",
        "input_series": [series for site in sites for series in _input(site, end, step)],
        "alert_rule_test": [{"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []}],
    }
    return _judged(test, rules, scratch, step)


def _judged(test: dict[str, Any], rules: list[Path], scratch: Path, step: int, ruler: Path = PROMTOOL) -> str:
    document = {"rule_files": [str(path) for path in rules], "evaluation_interval": f"{step}s", "tests": [test]}
    file = scratch / "site.yml"
    file.write_text(yaml.dump(document, sort_keys=False))
    calm = os.environ | {"GOGC": "400", "TMPDIR": str(scratch)}  # else a third of the time is garbage collection
    command = [ruler, "unittest", f"--files={file}", "-loggerLevel=ERROR", "-disableAlertgroupLabel"]
    if ruler == PROMTOOL:
        command = [ruler, "test", "rules", file]
    output = subprocess.run(command, capture_output=True, text=True, check=False, env=calm)
    return output.stdout + output.stderr


def _input(site: Site, end: int, step: int) -> Iterable[dict[str, str]]:
    times = range(0, end + 1, step)
    for node, pages in site.scrapes.items():
        series: dict[Series, dict[int, float]] = {}
        for time, page in pages.items():
            for (name, labels), value in (page or {}).items():
                if name in READ:
                    series.setdefault((name, labels), {})[int(time)] = value
        up = {int(time): float(page is not None) for time, page in pages.items()}
        fails = REFUSED_SECONDS if node in site.nodes and site.nodes[node].refuses else TIMEOUT_SECONDS
        took = {int(time): fails if page is None else 0.01 for time, page in pages.items()}
        own = {("up", ()): up, ("scrape_duration_seconds", ()): took, **series}
        for port in ("19028", "19029")[: 1 + (node in site.nodes and site.nodes[node].is_doubled)]:
            target = {"cluster": site.cluster, "job": "rankwatch-liveness", "node": node, "instance": f"{node}:{port}"}
            for (name, labels), values in own.items():
                words = ",".join(f"{label}={json.dumps(word)}" for label, word in {**target, **dict(labels)}.items())
                yield {"series": f"{name}{{{words}}}", "values": " ".join(_values(values, times))}


def _values(values: dict[int, float], times: Iterable[int]) -> Iterable[str]:
    """Yield one word for each time: the value, `stale` at the end of the series, `_` without a sample."""
    was_there = False
    for time in times:
        if time in values:
            yield repr(values[time])
        else:
            yield "stale" if was_there else "_"
        was_there = time in values


def _parsed(output: str) -> Iterable[tuple[int, list[Firing]]]:
    for part in output.split("expr: ")[1:]:
        time = _TIME.search(part)
        got = part.partition("got:")[2]
        alerts = [dict(_LABEL.findall(sample)) for sample in re.findall(r"\{[^{}]*alertname[^{}]*\}", got)]
        if time is not None and alerts:
            yield _seconds(time[1]), alerts


def _seconds(text: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))
