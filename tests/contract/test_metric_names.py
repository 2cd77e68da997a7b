"""Metric names are an API: the rules for every family's name, help and labels."""

from __future__ import annotations

import re
from collections import Counter

import yaml
from shipped import FAMILIES, OWNED, ROOT

from agent.core.metrics import Family
from agent.hardware import gpu_families

MAX_FAMILIES = 210
"""200 families exist, so ten more fit."""
USERS = ("deploy/prometheus/sources/*.yml", "deploy/prometheus/optional/*.yml", "grafana/*.py", "agent/cli/**/*.py")
"""Files that read metrics: rules, dashboards and commands."""
ASKED = yaml.safe_load((ROOT / "docs/asked.yml").read_text())
"""Incidents in which a person queries other metrics, by name."""
NOT_BASE_UNITS = re.compile(
    r"_(ns|us|ms|nanoseconds|microseconds|milliseconds|minutes|hours|days|kb|mb|gb|kib|mib|gib|kilobytes|megabytes"
    r"|gigabytes|bits|gbps|percent|celsius_f|fahrenheit|milliwatts|mhz)(_|$)"
)
STANDARD_NAMES = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_start_time_seconds",
}
LABEL_NAME = re.compile(r"[a-z][a-z0-9_]*")
TAKEN_LABELS = {"job", "instance", "le", "quantile"}
"""Labels that Prometheus renames at the scrape, or that belong to other metric types."""


def test_every_family_has_one_owner() -> None:
    """A family has one owner; only the exporters amdgpu and nvml share families."""
    assert [
        owned for owned, count in Counter((owner, family.name) for owner, family in OWNED).items() if count > 1
    ] == []
    shared = {id(var) for var in vars(gpu_families).values() if isinstance(var, Family)}
    single = Counter(family.name for _, family in OWNED if id(family) not in shared)
    assert [name for name, count in single.items() if count > 1] == []
    assert {owner for owner, family in OWNED if id(family) in shared} <= {"amdgpu", "nvml"}


def test_names() -> None:
    """A name has our prefix and base units; only counters end in _total, and no name looks like a name of another type.

    Standard names are those that prometheus-client exports for every process."""
    for family in FAMILIES.values():
        check_name(family)


def check_name(family: Family) -> None:
    """Check one family's name."""
    assert family.name in STANDARD_NAMES or re.fullmatch(r"rankwatch_[a-z0-9]+(_[a-z0-9]+)*", family.name)
    assert not NOT_BASE_UNITS.search(family.name)
    assert family.name.endswith("_total") == (family.kind == "counter"), family.name
    assert not family.name.endswith(("_count", "_sum", "_bucket", "_created"))
    assert not family.name.endswith("_info") or family.kind == "gauge", family.name


def test_help_and_cost() -> None:
    """HELP is one line of sentences, and a family with labels has its cost in series."""
    for family in FAMILIES.values():
        check_help_and_cost(family)


def check_help_and_cost(family: Family) -> None:
    """Check one family's HELP and cost."""
    assert re.fullmatch(r"\S[^\n]+\.", family.help), family.name
    assert family.cost, family.name
    assert not family.labels or family.name.endswith("_info") or family.cost != "1 per node", family.name


def test_labels() -> None:
    """Label names are plain and unique, and not those of Prometheus; a rank label comes with its job."""
    for family in FAMILIES.values():
        check_labels(family)


def check_labels(family: Family) -> None:
    """Check one family's label names."""
    assert all(LABEL_NAME.fullmatch(label) for label in family.labels)
    assert len(set(family.labels)) == len(family.labels)
    assert TAKEN_LABELS & set(family.labels) == ({"le"} if family.kind == "histogram" else set()), family.name
    assert "le" not in family.labels[:-1]
    assert "rank" not in family.labels or "job_id" in family.labels


def test_every_metric_answers_a_question() -> None:
    """Each family is read by a rule, a dashboard or a command, or docs/asked.yml names the incident in which a person
    asks for it."""
    texts = (path.read_text() for pattern in USERS for path in ROOT.glob(pattern))
    words = {re.sub("_(bucket|sum|count)$", "", word) for text in texts for word in re.findall(r"rankwatch_\w+", text)}
    unused = FAMILIES.keys() - words - STANDARD_NAMES
    assert len(FAMILIES) <= MAX_FAMILIES, "drop a family that is used less, or raise MAX_FAMILIES and say why"
    assert unused == ASKED.keys(), "name the incident in docs/asked.yml, then run scripts/metrics-docs"
