"""With CI=true, a skipped test fails unless tests/allowed_skips lists the test and the reason."""

from __future__ import annotations

import os
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
ALLOWED = Path(__file__).with_name("allowed_skips")


class RequireEverything:
    """A plugin that turns skips into failures unless ``allowed`` has a line `test id: reason` (globs) for them."""

    def __init__(self, allowed: str) -> None:
        lines = (line.strip() for line in allowed.splitlines())
        pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
        self._allowed = [(test, reason) for test, _, reason in pairs]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Check the report of a test."""
        return self._judged((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Check the report of a module that skips itself."""
        return self._judged((yield))

    def _judged(self, report: Report) -> Report:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            if not any(fnmatchcase(report.nodeid, test) and fnmatchcase(reason, why) for test, why in self._allowed):
                report.outcome = "failed"
                report.longrepr = f"skipped, and {ALLOWED.name} does not allow it: {reason}"
        return report


def pytest_configure(config: pytest.Config) -> None:
    """Enable the plugin if CI=true."""
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(RequireEverything(ALLOWED.read_text()))
