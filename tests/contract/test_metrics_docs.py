"""The reference of metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "metrics-docs"


def test_the_reference_is_current() -> None:
    """docs/metrics.md is what scripts/metrics-docs makes of the declared families."""
    done = subprocess.run([sys.executable, SCRIPT, "--check"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
