"""What takes long, or needs what `scripts/test --full` alone fetches, runs with RANKWATCH_TEST_FULL=1."""

from __future__ import annotations

import os

import pytest

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="only with RANKWATCH_TEST_FULL=1")
