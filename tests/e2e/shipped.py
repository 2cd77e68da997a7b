"""The rules and scrape jobs that we ship, as a site sets them up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus import ROOT

DEPLOY = ROOT / "deploy" / "prometheus"


def build_rules(directory: Path, thresholds: Mapping[str, Any]) -> Path:
    """Build the rules with these thresholds; return their folder."""
    own, output = directory / "thresholds.yml", directory / "rules"
    own.write_text(yaml.safe_dump(dict(thresholds)))
    command = [sys.executable, str(DEPLOY / "build.py"), "--thresholds", str(own), "--output", str(output)]
    subprocess.run(command, check=True)
    return output


def prometheus_config(targets: Path, rules: Path, alertmanager_port: int) -> str:
    """Return the shipped configuration and scrape jobs, with targets from the files in ``targets``."""
    shipped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    jobs = (DEPLOY / "scrape" / "file_sd.yml").read_text()
    assert "/etc/prometheus/rankwatch/" in jobs
    config = {
        "global": {"evaluation_interval": "15s", "external_labels": {"replica": "0"}},
        "rule_files": [f"{rules}/*.yml"],
        "alerting": {
            "alert_relabel_configs": shipped["alerting"]["alert_relabel_configs"],
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}],
        },
        "scrape_configs": yaml.safe_load(jobs.replace("/etc/prometheus/rankwatch/", f"{targets}/"))["scrape_configs"],
    }
    return str(yaml.safe_dump(config))
