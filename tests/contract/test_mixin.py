"""The monitoring mixin: the shipped rules, split as mixins are, and the shipped dashboards."""

from __future__ import annotations

import json
from typing import Any

import _jsonnet  # type: ignore[import-not-found]  # an extension module without types
from shipped import GROUPS, ROOT


def evaluated(field: str) -> Any:
    """Return a hidden field of the mixin, as JSON."""
    mixin = ROOT / "grafana" / "mixin" / "mixin.libsonnet"
    return json.loads(_jsonnet.evaluate_snippet("test", f"(import '{mixin}').{field}"))


def test_rules_are_the_shipped_ones() -> None:
    """The mixin's rules equal the shipped ones, with the same intervals."""
    for kind, field in (("record", "prometheusRules"), ("alert", "prometheusAlerts")):
        of_kind = [group | {"rules": [rule for rule in group["rules"] if kind in rule]} for group in GROUPS]
        shipped = {group["name"]: group for group in of_kind if group["rules"]}
        assert {group["name"]: group for group in evaluated(field)["groups"]} == shipped


def test_dashboards_are_the_shipped_ones() -> None:
    """The mixin has each shipped dashboard."""
    shipped = {
        f"rankwatch-{path.name}": json.loads(path.read_text()) for path in (ROOT / "grafana/dashboards").glob("*.json")
    }
    assert evaluated("grafanaDashboards") == shipped
