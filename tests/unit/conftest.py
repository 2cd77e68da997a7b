"""Fixtures of several unit tests."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from rank_table import Table


@pytest.fixture
def table() -> Table:
    """Provide an empty rank table."""
    return Table()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that waits for the end of its standard input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()
