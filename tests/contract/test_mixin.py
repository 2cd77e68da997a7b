"""The monitoring mixin: the shipped rules, split as mixins are, and the shipped dashboards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import _jsonnet  # type: ignore[import-not-found]  # an extension module without types
import yaml

ROOT = Path(__file__).parents[2]


def evaluated(field: str) -> Any:
    """A hidden field of the mixin, as JSON."""
    mixin = ROOT / "grafana" / "mixin" / "mixin.libsonnet"
    return json.loads(_jsonnet.evaluate_snippet("test", f"(import '{mixin}').{field}"))


def test_rules_are_the_shipped_ones() -> None:
    """The mixin's rules equal the shipped ones, with the same intervals."""
    for kind, field in (("record", "prometheusRules"), ("alert", "prometheusAlerts")):
        shipped = {}
        for path in (ROOT / "deploy/prometheus/rules").glob("*.yml"):
            for group in yaml.safe_load(path.read_text())["groups"]:
                rules = [rule for rule in group["rules"] if kind in rule]
                if rules:
                    shipped[group["name"]] = group | {"rules": rules}
        assert {group["name"]: group for group in evaluated(field)["groups"]} == shipped


def test_dashboards_are_the_shipped_ones() -> None:
    """The mixin has each shipped dashboard."""
    shipped = {
        f"rankwatch-{path.name}": json.loads(path.read_text()) for path in (ROOT / "grafana/dashboards").glob("*.json")
    }
    assert evaluated("grafanaDashboards") == shipped
