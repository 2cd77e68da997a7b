"""The plugin that turns unexpected skips into failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = Path(__file__).parents[1] / "skips.py"
TESTS = {
    "test_some.py": """
import pytest

def test_runs(): pass

@pytest.mark.skip(reason="no GPU here")
def test_allowed(): pass

@pytest.mark.skipif(True, reason="no promtool")
def test_other(): pass

def test_within(): pytest.skip("no GPU here")

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(): assert False
""",
    "test_module.py": "import pytest\npytest.importorskip('no_such_module_here')\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "allowed", "outcome"), [
    ("", "", "1 passed, 4 skipped, 1 xfailed"),
    ("true", "*::test_allowed: no promtool\n*: another\n", "1 failed, 1 passed, 1 xfailed, 3 errors"),
    ("true", "test_some.py::test_*: no GPU here\ntest_module.py: *", "1 passed, 3 skipped, 1 xfailed, 1 error"),
    ("true", "# of old\n\n*: *\n", "1 passed, 4 skipped, 1 xfailed"),
])  # fmt: skip
def test_skips_not_allowed_fail_in_ci(tmp_path: Path, ci: str, allowed: str, outcome: str) -> None:
    """With CI=true a skip, even a module's, fails unless listed by test and reason; an expected failure does not."""
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "skips.py").write_text(SKIPS.read_text())
    (tmp_path / "allowed_skips").write_text(allowed)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --continue-on-collection-errors\n")
    command = [sys.executable, "-m", "pytest", "-p", "skips", "-p", "no:cacheprovider", tmp_path]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert outcome in done.stdout.splitlines()[-1]
    assert done.returncode == ("error" in outcome)
