"""The texts of the shipped receivers, for groups of every shape, because a template that fails loses the page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alerting import SHIPPED, alert, posted, why_no_alertmanager

WHY_NOT = why_no_alertmanager()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

RECEIVERS = {receiver["name"]: receiver for receiver in yaml.safe_load(SHIPPED.read_text())["receivers"]}
PAGE, TICKET = RECEIVERS["page"]["pagerduty_configs"][0], RECEIVERS["ticket"]["slack_configs"][0]
EMAIL = RECEIVERS["page-email"]["email_configs"][0]
BARE = {"labels": {"alertname": "Own", "severity": "page"}, "annotations": {}}
"""A site's own alert, without texts and without a cluster."""
FULL = posted(alert("RankDead", "page", "1"))


def templates(node: Any) -> Iterator[str]:
    """Yield the templates in a configuration."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from templates(each)
    elif isinstance(node, str) and "{{" in node:
        yield node


def render(directory: Path, text: str, firing: int, over: int, one: dict[str, Any]) -> str:
    """Return the text of a group of ``firing`` equal alerts and ``over`` resolved alerts; no template may fail."""
    ended = {**one, "status": "resolved", "annotations": {} if firing else one["annotations"]}
    alerts = [ended] * over + [{**one, "status": "firing"}] * firing
    group = {
        "status": "firing" if firing else "resolved",
        "alerts": alerts,
        "groupLabels": {name: value for name, value in one["labels"].items() if name in ("cluster", "job_id")},
        "commonLabels": one["labels"],
        "commonAnnotations": one["annotations"],
    }
    data = directory / "data.json"
    data.write_text(json.dumps(group))
    (directory / "none.tmpl").touch()
    options = (f"--template.glob={directory}/none.tmpl", f"--template.data={data}", f"--template.text={text}")
    done = subprocess.run(
        ["amtool", "template", "render", *options], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout.removesuffix("\n")


@pytest.mark.parametrize("one", [FULL, BARE], ids=["full", "bare"])
@pytest.mark.parametrize(("firing", "over"), [(1, 0), (2, 0), (9, 0), (10, 1), (0, 1), (0, 10)])
def test_no_text_fails(tmp_path: Path, one: dict[str, Any], firing: int, over: int) -> None:
    """Every template renders for one alert and for many, firing or resolved, with and without annotations."""
    for text in templates([PAGE, TICKET, EMAIL]):
        assert "<no value>" not in render(tmp_path, text, firing, over, one)


@pytest.mark.parametrize(("firing", "over", "one", "title"), [
    (1, 0, FULL, "c1: RankDead of 1"),
    (9, 3, FULL, "c1: RankDead of 1, and 8 more"),
    (0, 2, FULL, "Over: c1: RankDead of 1, and 1 more"),
    (1, 0, posted({"alertname": "RankDead", "job_id": "1"}), "RankDead of 1"),
])  # fmt: skip
def test_a_title_counts_what_fires(tmp_path: Path, firing: int, over: int, one: dict[str, Any], title: str) -> None:
    """A title has the cluster, the first summary and the number of further alerts, or says that all are resolved."""
    assert render(tmp_path, TICKET["title"], firing, over, one) == title
    assert render(tmp_path, PAGE["description"], firing, over, one) == title.removeprefix("Over: ")
    assert render(tmp_path, EMAIL["headers"]["Subject"], firing, over, one) == title
    assert render(tmp_path, PAGE["links"][1]["href"], firing, over, one) == one["annotations"]["runbook_url"]


def test_what_is_shown_of_many_alerts_is_said(tmp_path: Path) -> None:
    """A text has the summaries of at most nine alerts, and the number of the others."""
    shown = render(tmp_path, TICKET["text"], 9, 0, FULL)
    assert (shown.count("Also: "), "more" in shown) == (8, False)
    cut = render(tmp_path, TICKET["text"], 10, 0, FULL)
    assert (cut.count("Also: "), "And 1 more." in cut) == (8, True)
