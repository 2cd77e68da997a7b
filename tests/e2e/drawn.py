"""Dashboards as pictures, drawn by Grafana's own components in Chromium (grafana/render), without a Grafana server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from browser import Browser
from jobs import ROOT
from nodes import wait_until

SOURCE = ROOT / "grafana" / "render"
INSTALLED = ROOT / ".cache" / "render"
ROW_PIXELS = 38
FIRST_SCREEN_PIXELS = 1150
ESBUILD = [
    *("node_modules/.bin/esbuild", "app.jsx", "--bundle", "--outfile=app.js", "--format=iife", "--platform=browser"),
    *("--alias:react-custom-scrollbars-2=./scroll.js", "--loader:.svg=dataurl", "--loader:.woff2=dataurl"),
    *("--loader:.ttf=dataurl", "--loader:.css=css", '--define:process.env.NODE_ENV="development"'),
    *("--define:global=window", "--jsx=automatic", "--log-level=error"),
]


def why_no_drawing() -> str | None:
    """Return the reason to skip, or None."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "chromium and chromedriver not found: scripts/test installs them"
    if not (INSTALLED / "node_modules" / "@grafana" / "ui").exists():
        return "no Grafana components in .cache/render: scripts/test --full fetches them"
    return None


def bundle(directory: Path) -> Path:
    """Build the program that draws, as one file in ``directory``; return its path."""
    for name in ("app.jsx", "scroll.js"):
        shutil.copy(SOURCE / name, directory)
    (directory / "node_modules").symlink_to(INSTALLED / "node_modules")
    subprocess.run(ESBUILD, check=True, cwd=directory)
    return directory / "app.js"


def unfolded(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a dashboard's rows and panels with every row open."""
    return [panel for each in dashboard["panels"] for panel in (each, *each.get("panels", ()))]


def draw(
    browser: Browser,
    program: Path,
    dashboard: Mapping[str, Any],
    results: Mapping[str, Sequence[Any]],
    seconds: tuple[float, float, float],
    *,
    light: bool,
    picture: Path | None,
) -> dict[str, str]:
    """Draw one dashboard; return the outcome of its panels, by title: drawn, empty, or an error's text.

    ``results``: Prometheus's results by "panel id:refId". ``seconds``: start, end and step of the range. ``picture``: a
    file for the top of the dashboard; the whole dashboard goes to a file with `-whole` in its name."""
    begin, end, step = seconds
    panels = unfolded(dashboard)
    data = {"dashboard": {**dashboard, "panels": panels}, "results": results, "from": begin, "to": end, "step": step}
    data |= {"light": light, "width": 1600}
    page = program.with_name("page.html")
    text = json.dumps(data).replace("<", "\\u003c")
    page.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><body><div id="root"></div>'
        f'<script>window.DATA = {text}</script><script src="{program.name}"></script></body></html>'
    )
    titles = {str(panel["id"]): panel["title"] for panel in panels if panel["type"] not in ("row", "text")}
    browser.open(page.as_uri())
    wait_until(lambda: set(browser.run("return window.DRAWN") or ()) >= set(titles), 60, "all panels")
    if picture is not None:
        whole = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW_PIXELS + 20
        for path, tall in ((picture, FIRST_SCREEN_PIXELS), (picture.with_stem(f"{picture.stem}-whole"), whole)):
            size = {"width": 1600, "height": tall, "deviceScaleFactor": 1, "mobile": False}
            browser.developer("Emulation.setDeviceMetricsOverride", size)
            browser.picture(path)
    return {titles[number]: what for number, what in browser.run("return window.DRAWN").items()}
