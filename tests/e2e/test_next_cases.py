"""The rules on trial, judged by promtool: cases of what agents export, and which alerts fire."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from programs import DEPLOY, build
from rules import run_promtool, why_no_promtool

NEXT = DEPLOY / "next"
CASES = sorted((NEXT / "tests").glob("*.yml"))
pytestmark = pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or "")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built rules, in a directory beside that of the cases."""
    directory = tmp_path_factory.mktemp("next") / "rules"
    directory.mkdir()
    sources = {path.name: path.read_text() for path in (NEXT / "sources").glob("*.yml")}
    for name, text in build.build(sources, build.read_thresholds(NEXT / "thresholds.yml", None)).items():
        (directory / name).write_text(text)
    shutil.copytree(NEXT / "tests", directory.parent / "tests")
    return directory


def test_rules_are_good(rules: Path) -> None:
    """promtool finds no fault with the rules, not even in style."""
    assert run_promtool("promtool", "check", "rules", "--lint-fatal", *sorted(rules.iterdir())) == ""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_alerts(rules: Path, case: Path) -> None:
    """Each alert fires when it should, with the words it should, and not otherwise."""
    assert run_promtool("promtool", "test", "rules", rules.parent / "tests" / case.name) == ""
