"""The shipped Prometheus rules and scrape jobs, and every available promtool to test them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = sorted((DEPLOY / "rules").glob("*.yml"))
RULE_TESTS = sorted((DEPLOY / "tests").glob("*.yml"))


def promtools() -> list[str]:
    """Return the machine's promtool, and those that `scripts/test --full` downloaded."""
    found = [shutil.which("promtool"), *sorted(map(str, (ROOT / ".cache/prometheus").glob("*/usr/bin/promtool")))]
    return [path for path in found if path is not None]


def why_no_promtool() -> str | None:
    """Return the reason to skip, or None."""
    return None if promtools() else "promtool not found"


GROUPS = [
    "rankwatch-deaths", "rankwatch-hardware", "rankwatch-hardware-wear", "rankwatch-hangs-slow", "rankwatch-hangs",
    "rankwatch-lateness", "rankwatch-causes", "rankwatch-fabric", "rankwatch-slow", "rankwatch-goodput",
    "rankwatch-goodput-low", "rankwatch-lemons", "rankwatch-jobs", "rankwatch-jobs-slow", "rankwatch-agent",
    "rankwatch-agent-trouble",
]  # fmt: skip
"""The order in which promtool evaluates the groups. Without a fixed order some results change from run to run."""


def run_promtool(promtool: str, *arguments: str | Path) -> str:
    """Run promtool; return its output if it failed, otherwise an empty text."""
    calm = os.environ | {"GOGC": "400"}  # garbage collection is a third of its time otherwise
    done = subprocess.run([promtool, *arguments], check=False, capture_output=True, text=True, timeout=120, env=calm)
    return "" if done.returncode == 0 else f"{promtool}: {done.stdout}{done.stderr}"


def write_case(
    directory: Path,
    tests: list[dict[str, Any]],
    interval: str = "5s",
    rules: Sequence[Path] = RULES,
    groups: Sequence[str] = GROUPS,
) -> Path:
    """Write a promtool file with tests of these shipped rules and this interval; return its path.

    ``groups``: the groups of ``rules``, in order."""
    file = directory / "test.yml"
    files = [str(path) for path in rules]
    test = {"rule_files": files, "evaluation_interval": interval, "group_eval_order": groups, "tests": tests}
    file.write_text(json.dumps(test))  # JSON is YAML
    return file


def series_key(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return a series in promtool's form."""
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels)}}}"


def values(samples: Iterable[float | None]) -> str:
    """Return samples in promtool's form: `stale` at the end of a series, `_` without a sample."""
    words: list[str] = []
    there = False
    for sample in samples:
        words.append("_" if sample is None and not there else "stale" if sample is None else repr(sample))
        there = sample is not None
    return " ".join(words)


def build_rules(
    directory: Path, thresholds: Mapping[str, Any], shorter: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Build the rules with these thresholds and with the replacements of ``shorter``; return their directory."""
    own, output = directory / "thresholds.yml", directory / "rules"
    own.write_text(yaml.safe_dump(dict(thresholds)))
    command = [sys.executable, str(DEPLOY / "build.py"), "--thresholds", str(own), "--output", str(output)]
    subprocess.run(command, check=True)
    built = {path: path.read_text() for path in output.glob("*.yml")}
    for long, short in shorter.items():
        assert any(long in text for text in built.values()), long
        built = {path: text.replace(long, short) for path, text in built.items()}
    for path, text in built.items():
        path.write_text(text)
    return output


def prometheus_config(targets: Path, rules: Path, *alertmanager_ports: int, proxy: str = "", replica: int = 0) -> str:
    """Return the shipped configuration and scrape jobs, with targets from the files in ``targets``.

    ``replica``: this server's number; replicas scrape at different times. ``proxy``: the proxy's address for
    scrapes."""
    shipped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    jobs = (DEPLOY / "scrape" / "file_sd.yml").read_text()
    assert "/etc/prometheus/rankwatch/" in jobs
    scrapes = yaml.safe_load(jobs.replace("/etc/prometheus/rankwatch/", f"{targets}/"))["scrape_configs"]
    static = [{"targets": [f"127.0.0.1:{port}" for port in alertmanager_ports]}]
    config = {
        "global": {"evaluation_interval": "15s", "external_labels": {"replica": str(replica)}},
        "rule_files": [f"{rules}/*.yml"],
        "alerting": {
            "alert_relabel_configs": shipped["alerting"]["alert_relabel_configs"],
            "alertmanagers": [{"static_configs": static}],
        },
        "scrape_configs": [{**scrape, "proxy_url": proxy} if proxy else scrape for scrape in scrapes],
    }
    return str(yaml.safe_dump(config))
