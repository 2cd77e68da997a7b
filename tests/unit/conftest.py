"""Fixtures of several unit tests."""

import pytest
from rank_table import Table


@pytest.fixture
def table() -> Table:
    """An empty rank table."""
    return Table()
