"""The shipped Prometheus rules: up to date, tested, with runbooks, and with thresholds that a site can set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import build
from shipped import DEPLOY, FAMILIES, RECORDED, ROOT, RULES, SOURCES, THRESHOLDS

SEVERITIES = {"page", "ticket", "info"}
MAX_CASE_LINE = 160
PARTS = ("*Do first*", "*Meaning*", "*Confirm*", "*Do*", "*False alarms*")


def rules_of(text: str) -> list[dict[str, Any]]:
    """Return the rules of a file."""
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


ALERTS = [rule for rule in RULES if "alert" in rule]
NAMES = sorted({rule["alert"] for rule in ALERTS})


def test_rules_are_current() -> None:
    """The committed rules equal the output of build.py."""
    shipped = {path.name: path.read_text() for path in (DEPLOY / "rules").glob("*.yml")}
    assert build.build(SOURCES, THRESHOLDS) == shipped


def test_an_alert_explains_itself() -> None:
    """An alert has a severity, a summary, a description with a cause, a dashboard and a runbook."""
    for rule in ALERTS:
        assert rule["labels"]["severity"] in SEVERITIES
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "dashboard_url", "runbook_url"}
        assert re.search(r"[Ll]ikely cause|^CAUSE:", notes["description"], re.MULTILINE)
        assert notes["dashboard_url"].startswith(f"{THRESHOLDS['dashboards']}/d/rankwatch-")
        assert notes["runbook_url"] == f"{THRESHOLDS['runbooks']}#{rule['alert'].lower()}"
        assert all(re.match("https?://", notes[name]) for name in ("dashboard_url", "runbook_url"))


def test_an_alert_has_a_runbook() -> None:
    """Each runbook has its five parts: first step, meaning, confirmation, remedy, false alarms."""
    for name in NAMES:
        sections = (ROOT / "docs" / "runbooks.md").read_text().split("\n## ")[1:]
        (section,) = [text for text in sections if text.partition("\n")[0] == name]
        assert re.findall(r"^\*[A-Z][a-z ]+\*(?=\. )", section, re.MULTILINE) == list(PARTS)


def test_pages_say_what_to_do_first() -> None:
    """A page has at most five lines, begins with the runbook's first step and has a cause."""
    sections = (ROOT / "docs" / "runbooks.md").read_text()
    for alert in (alert for alert in ALERTS if alert["labels"]["severity"] == "page"):
        lines = alert["annotations"]["description"].splitlines()
        words = [line.partition(":")[0] for line in lines]
        assert words == [word for word in ("DO", "THEN", "CAUSE", "OWNER", "EVIDENCE") if word in words]
        assert words[0] == "DO" and "CAUSE" in words
        (first,) = re.search(rf"^## {alert['alert']}$\n\n\*Do first\*\. ([^.]+)\.", sections, re.MULTILINE).groups()  # type: ignore[union-attr]  # there is one
        assert " ".join(first.split()) in lines[0]


def test_no_runbook_is_left_of_an_alert() -> None:
    """Every section of the runbooks has its alert."""
    assert set(re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)) == set(NAMES)


def test_an_alert_is_tested() -> None:
    """Each alert is expected by a promtool case or by the truth table."""
    for name in NAMES:
        cases = [path.read_text() for path in (DEPLOY / "tests").glob("*.yml")]
        cases += [path.read_text() for path in (ROOT / "tests" / "truth").glob("*.py")]
        assert any(re.search(rf"\b{name}\b", text) for text in cases)


def test_cases_are_readable() -> None:
    """Lines of cases are short, every case has an expectation, and names are unique."""
    for file in sorted((DEPLOY / "tests").glob("*.yml")):
        lines = file.read_text().splitlines()
        tests = yaml.safe_load("\n".join(lines))["tests"]
        names = [test["name"] for test in tests]
        assert [number for number, line in enumerate(lines, 1) if len(line) > MAX_CASE_LINE] == []
        assert [test["name"] for test in tests if not {"alert_rule_test", "promql_expr_test"} & set(test)] == []
        assert len(set(names)) == len(names)


def test_groups_are_evaluated_in_order() -> None:
    """A case with several groups lists their evaluation order, because promtool's own order changes from run to run."""
    for file in sorted((DEPLOY / "tests").glob("*.yml")):
        test = yaml.safe_load(file.read_text())
        groups = [
            group["name"]
            for rules in test["rule_files"]
            for group in yaml.safe_load((file.parent / rules).read_text())["groups"]
        ]
        assert len(groups) == 1 or sorted(test["group_eval_order"]) == sorted(groups)


def test_rules_use_metrics_that_exist() -> None:
    """Every metric in a rule is declared, and every recorded series that a rule reads is recorded."""
    for rule in RULES:
        text = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        used = set(re.findall(r"\b(?:\w+:rankwatch_\w+:\w+)", text))
        assert used <= RECORDED.keys(), rule
        plain = set(re.findall(r"(?<![\w:])rankwatch_\w+(?![\w:])", text))
        assert plain <= FAMILIES.keys(), rule


def test_jobs_of_two_clusters_are_two() -> None:
    """Every sum and join is by cluster, except for Prometheus's own metrics."""
    own = [rule for rule in RULES if rule.get("alert") != "RankwatchRulesLate"]
    labels = [(rule, match) for rule in own for match in re.findall(r"\b(?:by|on) \(([^()]*)\)", rule["expr"])]
    assert len(labels) > len(own)
    assert [(rule, by) for rule, by in labels if "cluster" not in by.split(", ")] == []
    assert not any(re.search(r"\b(?:without|ignoring)\b|\b(?:by|on)\(", rule["expr"]) for rule in RULES)


def test_who_may_wake_people() -> None:
    """Only the listed alerts are pages, and none is about the agent itself."""
    pages = {rule["alert"] for rule in ALERTS if rule["labels"]["severity"] == "page"}
    on_jobs = {"RankDead", "JobRestarting", "RankUnresponsive", "JobStalled"}
    by_ras = {"CommunicatorStalled", "CommunicatorError"}
    on_nodes = {"NodeLost", "RankUnhealthy", "StorageHung"}
    assert pages == on_jobs | by_ras | on_nodes


def test_a_site_sets_its_own(tmp_path: Path) -> None:
    """A site's file sets alerts on trial, adds labels to pages, and changes only the thresholds in it."""
    own = tmp_path / "own.yml"
    own.write_text(
        "page_ranks: 64\nlate_ratio: 2.5\nshadow: [StragglerRank, RankDead]\nslow_for: 1h30m\npage_labels: {team: ml}\n"
    )
    made = build.build(SOURCES, build.read_thresholds(DEPLOY / "thresholds.yml", own))
    rules = [rule for text in made.values() for rule in rules_of(text)]
    assert {r["labels"]["severity"] for r in rules if r.get("alert") in ("StragglerRank", "RankDead")} == {"shadow"}
    assert {r["labels"]["severity"] for r in rules if r.get("labels", {}).get("team") == "ml"} == {"page"}
    assert {r["for"] for r in rules if r.get("alert") == "SlowCommunicator"} == {"1h30m"}
    assert "last_over_time(job:rankwatch_ranks_expected:max[1h]) >= 64" in made["deaths.yml"]
    assert {r["labels"]["severity"] for r in rules if r.get("alert") == "JobStalled"} == {"page", "ticket", "info"}


@pytest.mark.parametrize(("text", "said"), [
    ("page_rank: 64\n", "no threshold page_rank"),
    ("page_ranks: many\n", "page_ranks must look like 16"),
    ("slow_for: 30\n", "slow_for must look like '10m'"),
    ("carry: 3 minutes\n", "carry must look like '3m'"),
    ("stalled_seconds: 400.5\n", "stalled_seconds must look like 300"),
    ("page_ranks: -1\n", "page_ranks must look like 16"),
    ("late_share: .nan\n", "late_share must look like 0.03"),
    ("page_labels: {team: [a]}\n", "page_labels must look like {}"),
    ("shadow: [[a]]\n", "shadow must look like []"),
    ('dashboards: "%{dashboards}"\n', "dashboards must look like"),
    ("hardware_causes: gpu(\n", "hardware_causes must look like"),
    ("hardware_causes: (?!gpu)\n", "hardware_causes must look like"),
    ("page_lived: long|short\\d\n", "page_lived must look like"),
    ("liveness_job: rank\"watch\n", "liveness_job must look like"),
    ("- 1\n", "not a mapping"),
    ("a: [\n", "own.yml"),
])  # fmt: skip
def test_mistakes_in_a_sites_file(tmp_path: Path, text: str, said: str) -> None:
    """build.py refuses unknown names and wrong types; its error has the name."""
    own = tmp_path / "own.yml"
    own.write_text(text)
    with pytest.raises(build.RulesError, match=re.escape(said)):
        build.read_thresholds(DEPLOY / "thresholds.yml", own)


@pytest.mark.parametrize(("change", "said"), [
    ({"shadow": ["NoSuchAlert"]}, "there is no alert NoSuchAlert"),
    ({"unused": 1}, "no rule uses the threshold unused"),
    ({"page_ranks": None}, "no threshold page_ranks"),
])  # fmt: skip
def test_thresholds_and_sources_must_fit(change: dict[str, Any], said: str) -> None:
    """build.py refuses an unused or missing threshold, and an unknown alert in the list of alerts on trial."""
    values = {name: value for name, value in (THRESHOLDS | change).items() if value is not None}
    with pytest.raises(build.RulesError, match=said):
        build.build(SOURCES, values)
