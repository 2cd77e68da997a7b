"""The shipped metric families with their owners, and the shipped rules with their sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from programs import build

from agent.app.discovery import exporter_names, load_spec
from agent.export import agent_families
from agent.ranks import families as rank_families, health, liveness_families

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
OWNED = [
    *(("agent", family) for family in agent_families.FAMILIES),
    *(("liveness", family) for family in liveness_families.FAMILIES),
    *(("ranks", family) for family in rank_families.FAMILIES),
    *(("health", family) for family in health.FAMILIES),
    *((name, family) for name in exporter_names() for family in load_spec(name).families),
]
FAMILIES = {family.name: family for _, family in OWNED}
GROUPS: list[dict[str, Any]] = [
    group for path in sorted((DEPLOY / "rules").glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]
]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
SOURCES = {path.name: path.read_text() for path in sorted((DEPLOY / "sources").glob("*.yml"))}
THRESHOLDS = build.read_thresholds(DEPLOY / "thresholds.yml", None)
