"""docs/capabilities.md: its rows and totals; the tests, metrics and alerts that it names exist."""

from __future__ import annotations

import re
from collections import Counter

from shipped import FAMILIES, RECORDED, ROOT, RULES

PAGE = (ROOT / "docs" / "capabilities.md").read_text()
LABELS_AND_KEYS = {"job_id", "node_rank", "port_in_use", "all_values", "lldp_neighbors"}
STATES = ("yes", "partly", "no", "outside")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [A-D]\d+ \|", line)
]
IDS = [
    f"{system}{number}" for system, most in zip("ABCD", (16, 15, 30, 30), strict=True) for number in range(1, most + 1)
]


def test_every_row_is_there_once() -> None:
    """Rows are in order, each with one of four states."""
    assert [row[0] for row in ROWS] == IDS
    assert {row[2] for row in ROWS} <= set(STATES)


def test_totals_are_those_of_the_rows() -> None:
    """The table at the top counts the rows below it."""
    counted = {"all": Counter(row[2] for row in ROWS)}
    for system in "ABCD":
        counted[f"{system}1"] = Counter(row[2] for row in ROWS if row[0].startswith(system))
    matches = re.findall(
        r"^\| [^|]+ \| (?:91|([A-D]1) to [A-D]\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE
    )
    assert {name or "all": dict(zip(STATES, map(int, numbers), strict=True)) for name, *numbers in matches} == {
        name: {state: counts[state] for state in STATES} for name, counts in counted.items()
    }


def test_a_row_is_proven() -> None:
    """A complete row has a test that exists; a partial or missing row has a sentence with the reason."""
    for row in ROWS:
        _, _, state, text, tests = row
        named = re.findall(r"`([^`]+)`", tests)
        assert bool(named) == (state in ("yes", "partly"))
        assert state not in ("partly", "no") or re.search(r"\w{3}.*\.$", text)
        assert [test for test in named if not is_there(test)] == []


def is_there(name: str) -> bool:
    """Return whether a Python test or a promtool case file exists."""
    path, _, function = name.partition("::")
    if not function:
        return (ROOT / "deploy" / "prometheus" / "tests" / path).is_file()
    return re.search(rf"^(?:async )?def {function}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE) is not None


def test_metrics_and_alerts_are_there() -> None:
    """Every metric, recorded series and alert in a row exists."""
    metrics = {name.removeprefix("rankwatch_") for name in FAMILIES}
    text = " ".join(row[3] for row in ROWS)
    words = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)(?:\{[^`]*\})?`", text)
    named = set(words) - LABELS_AND_KEYS
    assert len(named) > 60
    assert named - metrics == set()
    assert set(re.findall(r"`(\w+:rankwatch_\w+:\w+)`", text)) <= RECORDED.keys()
    alerts = re.findall(r"alerts? ((?:[A-Z]\w+(?:, )?)+)", text)
    assert {name for alert in alerts for name in alert.split(", ") if name} <= {rule.get("alert") for rule in RULES}
