"""docs/pages.md: a notification of RankDead, as the shipped templates have PagerDuty and Slack show it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alerting import ROOT, SHIPPED, why_no_alertmanager

WHY_NOT = why_no_alertmanager()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

CAPTURED = ROOT / "tests" / "data" / "pages" / "rank_dead.json"
SHOWN = ROOT / "docs" / "pages.md"
RECEIVERS = {each["name"]: each for each in yaml.safe_load(SHIPPED.read_text())["receivers"]}
FENCED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def render(directory: Path, text: str) -> str:
    """Return what a template makes of the captured notification."""
    (directory / "none.tmpl").touch()
    options = (f"--template.glob={directory}/none.tmpl", f"--template.data={CAPTURED}", f"--template.text={text}")
    done = subprocess.run(
        ["amtool", "template", "render", *options], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip()


def pagerduty(directory: Path, config: dict[str, Any]) -> str:
    """Return the lines of an incident."""
    lines = [render(directory, config["description"])]
    lines += [f"severity: {config['severity']}"]
    lines += [f"{name}: {render(directory, config[name])}" for name in ("class", "group")]
    details = {name: render(directory, text) for name, text in config["details"].items() if text}
    lines += [f"{name}: {text}" for name, text in details.items() if text]
    lines += [f"[{render(directory, each['text'])}] {render(directory, each['href'])}" for each in config["links"]]
    return "".join(f"{line}\n" for line in lines)


def slack(directory: Path, config: dict[str, Any]) -> str:
    """Return the lines of a message."""
    return "".join(f"{render(directory, config[name])}\n" for name in ("title", "title_link", "text"))


def test_a_page_is_shown_as_the_documentation_has_it(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The two texts of docs/pages.md are what the shipped templates make of the captured notification."""
    shown = [
        pagerduty(tmp_path, RECEIVERS["page"]["pagerduty_configs"][0]),
        slack(tmp_path, RECEIVERS["ticket"]["slack_configs"][0]),
    ]
    text = SHOWN.read_text()
    if request.config.getoption("--update-golden"):
        fresh = iter(shown)
        text = FENCED.sub(lambda _: f"```text\n{next(fresh)}```", text)
        SHOWN.write_text(text)
    assert FENCED.findall(text) == shown
    assert json.loads(CAPTURED.read_text())["receiver"] == "page"
