"""The reference of metrics."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_is_current() -> None:
    """docs/metrics.md is what scripts/metrics-docs makes of the declared families."""
    program = runpy.run_path(str(ROOT / "scripts" / "metrics-docs"))
    assert program["page"]() == (ROOT / "docs" / "metrics.md").read_text()
