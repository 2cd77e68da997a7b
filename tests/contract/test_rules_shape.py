"""The rules' shape: every evaluator (Prometheus, VictoriaMetrics) can run them, and a person can follow them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from programs import build
from shipped import RECORDED, ROOT, RULES, SOURCES, THRESHOLDS

from agent.app.config import AgentConfig
from agent.ranks.rank.verdict_thresholds import DEFAULTS
from exporters.rdma.families import COUNTER, DRIVER_FAULTS, HARDWARE_COUNTER, PORT_FAULTS

MAX_LINES = 1300  # lines of all sources
MAX_COLUMNS = 120  # columns of a line
MAX_RECORDINGS = 90  # recordings in all sources
MAX_DEPTH = 2  # recordings below an alert, one upon the other
MAX_EXPRESSION = 36
"""A built expression fits on this many lines of MAX_COLUMNS."""
RECORDING = re.compile(r"\b\w+:rankwatch_\w+:\w+")


def depth(expression: str) -> int:
    """Return the number of levels of recording rules that an expression reads."""
    return max((1 + depth(RECORDED[name]) for name in RECORDING.findall(expression)), default=0)


def test_sources_are_short() -> None:
    """The sources stay within their limits of lines, columns and recordings."""
    lines = [line for text in SOURCES.values() for line in text.splitlines()]
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []
    assert len(RECORDED) <= MAX_RECORDINGS


def test_a_rule_needs_no_memory() -> None:
    """A rule reads at most two levels of recordings, not itself, and no alerts."""
    for rule in RULES:
        assert "ALERTS" not in rule["expr"]
        assert set(RECORDING.findall(rule["expr"])) <= RECORDED.keys()
        assert depth(rule["expr"]) <= (MAX_DEPTH if "alert" in rule else MAX_DEPTH - 1)


def test_an_expression_is_readable() -> None:
    """A built expression fits on a screen."""
    for rule in RULES:
        assert len(" ".join(rule["expr"].split())) <= MAX_EXPRESSION * MAX_COLUMNS


def test_texts_ask_no_database() -> None:
    """Texts use only the alert's labels and value."""
    for rule in [rule for rule in RULES if "alert" in rule]:
        assert [text for text in rule["annotations"].values() if "query" in text.replace("urlquery", "")] == []
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_agents_and_rules_judge_by_the_same_numbers(tmp_path: Path) -> None:
    """The agent's defaults equal the thresholds, and `build.py --agent` reads its section `verdict`."""
    defaults = msgspec.to_builtins(DEFAULTS)
    assert frozenset(AgentConfig.__struct_fields__) == build.SECTIONS
    assert (defaults.keys() & THRESHOLDS.keys(), defaults.keys()) == (build.SHARED, build.SHARED | build.AGENTS_OWN)
    assert {name: THRESHOLDS[name] for name in build.SHARED} == {name: defaults[name] for name in build.SHARED}
    config = tmp_path / "rankwatch.yml"
    config.write_text("verdict: {killed_behind_seconds: 20, blocked_seconds: 90}\n")
    changed = build.with_verdict(THRESHOLDS, config)
    assert changed == THRESHOLDS | {"killed_behind_seconds": 20}
    assert "< time() - 20" in build.build(SOURCES, changed)["deaths.yml"]


@pytest.mark.parametrize("text", [
    "verdict: {killed_behind: 20}",
    'verdict: {end_seconds: "20s"}',
    "verdict: [1]",
    "verdict: []",
    "verdict: {end_seconds: .nan}",
    "verdict: {end_seconds: 0}",
    "verdict: {end_seconds: 86401}",
    "Verdict: {}",
    "verdict: {end_seconds: 20, end_seconds: 30}",
])  # fmt: skip
def test_a_wrong_verdict_is_refused(text: str, tmp_path: Path) -> None:
    """`build.py` refuses a file that is no agent configuration."""
    config = tmp_path / "rankwatch.yml"
    config.write_text(text)
    with pytest.raises(build.RulesError, match=r"rankwatch\.yml"):
        build.with_verdict(THRESHOLDS, config)


def test_recordings_serve() -> None:
    """Every recorded series is read by a rule, a dashboard or a command."""
    readers = " ".join(rule["expr"] for rule in RULES)
    readers += " ".join(path.read_text() for path in sorted((ROOT / "grafana").glob("*.py")))
    readers += " ".join(path.read_text() for path in sorted((ROOT / "agent").rglob("*.py")))
    assert [name for name in RECORDED if name not in readers] == []


@pytest.mark.parametrize(
    ("family", "shown"), [(COUNTER.name, PORT_FAULTS), (HARDWARE_COUNTER.name, DRIVER_FAULTS)], ids=("link", "driver")
)
def test_counters_of_the_rules_are_shown(family: str, shown: frozenset[str]) -> None:
    """Each RDMA counter of a rule has a series without all_counters."""
    rules = " ".join(rule["expr"] for rule in RULES)
    selectors = re.findall(family + r'\{counter=~?"([^"]+)"', rules)
    assert len(selectors) == rules.count(family) > 0
    named = {name for selector in selectors for name in selector.split("|")}
    assert {name for name in named if not any(re.fullmatch(name, pattern) for pattern in shown)} == set()
