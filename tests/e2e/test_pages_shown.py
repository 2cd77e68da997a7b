"""docs/pages.md: a notification of RankDead, rendered by the shipped templates for each receiver, and on a phone."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alerting import ROOT, SHIPPED, why_no_alertmanager
from browser import Browser, why_no_browser

WHY_NOT = why_no_alertmanager()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

CAPTURED = ROOT / "tests" / "data" / "pages" / "rank_dead.json"
SHOWN = ROOT / "docs" / "pages.md"
RECEIVERS = {receiver["name"]: receiver for receiver in yaml.safe_load(SHIPPED.read_text())["receivers"]}
FENCED = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def render(directory: Path, text: str) -> str:
    """Return the text of a template for the recorded notification."""
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
    lines += [f"[{render(directory, link['text'])}] {render(directory, link['href'])}" for link in config["links"]]
    return "".join(f"{line}\n" for line in lines)


def slack(directory: Path, config: dict[str, Any]) -> str:
    """Return the lines of a Slack message."""
    return "".join(f"{render(directory, config[name])}\n" for name in ("title", "title_link", "text"))


def opsgenie(directory: Path, config: dict[str, Any]) -> str:
    """Return the lines of an Opsgenie alert."""
    named = f"priority: {config['priority']}\ntags: {render(directory, config['tags'])}\n"
    return f"{render(directory, config['message'])}\n{named}{render(directory, config['description'])}\n"


def email(directory: Path, config: dict[str, Any]) -> str:
    """Return the lines of a mail."""
    return f"Subject: {render(directory, config['headers']['Subject'])}\n\n{render(directory, config['text'])}\n"


def test_a_page_is_shown_as_the_documentation_has_it(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The shipped templates render the recorded notification to the texts of docs/pages.md."""
    shown = [
        pagerduty(tmp_path, RECEIVERS["page"]["pagerduty_configs"][0]),
        opsgenie(tmp_path, RECEIVERS["page-opsgenie"]["opsgenie_configs"][0]),
        email(tmp_path, RECEIVERS["page-email"]["email_configs"][0]),
        slack(tmp_path, RECEIVERS["ticket"]["slack_configs"][0]),
    ]
    text = SHOWN.read_text()
    if request.config.getoption("--update-golden"):
        fresh = iter(shown)
        text = FENCED.sub(lambda _: f"```text\n{next(fresh)}```", text)
        SHOWN.write_text(text)
    assert FENCED.findall(text) == shown
    assert json.loads(CAPTURED.read_text())["receiver"] == "page"


HALF_A_PHONE = 390, 422
PHONE = """<!doctype html><meta name="viewport" content="width=device-width"><style>
body {{ margin: 0; background: #1c1c1e; color: #fff; font: 17px/1.35 sans-serif }}
main {{ margin: 16px; padding: 12px 14px; border-radius: 16px; background: #2c2c2e }}
small {{ color: #aeaeb2 }} b {{ display: block; margin: 4px 0 8px }} p {{ margin: 0 0 6px; overflow-wrap: anywhere }}
</style><main><small>PagerDuty, now</small><b>{title}</b>{lines}</main>"""


@pytest.mark.skipif(why_no_browser() is not None, reason=why_no_browser() or "")
def test_a_page_fits_on_a_phone(tmp_path: Path) -> None:
    """Title and text of a page need less than half of a phone's screen."""
    config = RECEIVERS["page"]["pagerduty_configs"][0]
    title, text = (render(tmp_path, template) for template in (config["description"], config["details"]["what"]))
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in text.splitlines())
    page = tmp_path / "phone.html"
    page.write_text(PHONE.format(title=html.escape(title), lines=lines))
    with Browser(tmp_path) as browser:
        screen = {"width": HALF_A_PHONE[0], "height": HALF_A_PHONE[1], "deviceScaleFactor": 2, "mobile": True}
        browser.developer("Emulation.setDeviceMetricsOverride", screen)
        browser.open(page.as_uri())
        bottom = browser.run("return document.querySelector('main').getBoundingClientRect().bottom")
        assert bottom < HALF_A_PHONE[1]
        if pictures := os.environ.get("RANKWATCH_PICTURES"):
            browser.picture(Path(pictures) / "phone.png")
