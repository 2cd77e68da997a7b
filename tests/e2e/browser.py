"""A real browser: Debian's Chromium, controlled by chromedriver with W3C's WebDriver."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from jobs import ROOT
from nodes import Closing, wait_until
from ports import free_port

AXE = ROOT / ".cache" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
ANSWER_SECONDS = 60.0


def why_no_browser() -> str | None:
    """Return the reason to skip, or None."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found: scripts/test installs it"
    return None if AXE.exists() else "no axe-core in .cache/npm: scripts/test fetches it"


class Browser(Closing):
    """One window of ``size``, light or ``dark``, with or without scripts; a context manager."""

    def __init__(
        self, home: Path, size: tuple[int, int] = (1280, 900), *, dark: bool = False, scripts: bool = True
    ) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        arguments += [f"--window-size={size[0]},{size[1]}", f"--user-data-dir={home / 'profile'}"]
        preferences = {} if scripts else {"profile.managed_default_content_settings.javascript": 2}
        options = {"args": [*arguments, *(["--force-dark-mode"] if dark else [])], "prefs": preferences}
        self._port = free_port()
        self._log = (home / "chromedriver.log").open("wb")
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": str(home)},
            start_new_session=True,
        )
        try:
            wait_until(self._is_ready, 20, "chromedriver")
            capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
            self._session = str(self._ask("POST", "/session", {"capabilities": capabilities})["sessionId"])
            if dark:
                self.developer(
                    "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
                )
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        try:
            self._ask("DELETE", f"/session/{self._session}")
        finally:
            self._end()

    def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._ask("POST", f"/session/{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Return the result of a script in the page; a promise is awaited."""
        body = {"script": script, "args": list(arguments)}
        return self._ask("POST", f"/session/{self._session}/execute/sync", body)

    def developer(self, command: str, parameters: object) -> Any:
        """Run a command of Chromium's developer tools."""
        return self._ask("POST", f"/session/{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", f"/session/{self._session}/screenshot")))

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)["value"]

    def _is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except OSError:
            return False

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait(10)
        self._log.close()
