"""Fixtures of several unit tests."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from rank_table import Table


@pytest.fixture
def table() -> Table:
    """An empty rank table."""
    return Table()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its standard input to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()
