"""RANKWATCH_TEST_FULL=1 enables tests that are slow or need the downloads of `scripts/test --full`."""

from __future__ import annotations

import os

import pytest

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="only with RANKWATCH_TEST_FULL=1")
