"""The web file, checked by promtool."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_web_file import BAD, DATA, GOOD

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool not found")


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_promtool_is_of_one_mind(name: str, tmp_path: Path) -> None:
    """promtool accepts each web file that the agent accepts, and refuses each file that is wrong for both."""
    for path in DATA.glob("*.*"):
        shutil.copy(path, tmp_path)
    file = tmp_path / "web.yml"
    file.write_text(GOOD[name] if name in GOOD else BAD[name][0])
    done = subprocess.run(["promtool", "check", "web-config", file], check=False, capture_output=True, text=True)
    assert (done.returncode == 0) == (name in GOOD), done.stderr
