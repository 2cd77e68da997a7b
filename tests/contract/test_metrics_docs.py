"""The reference of metrics."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_is_current() -> None:
    """docs/metrics.md equals the output of scripts/metrics-docs."""
    program = runpy.run_path(str(ROOT / "scripts" / "metrics-docs"))
    assert program["page"]() == (ROOT / "docs" / "metrics.md").read_text()
