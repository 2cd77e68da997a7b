"""Fixtures and options for all tests."""

import contextlib
import inspect
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from blockbuster import blockbuster_ctx
from hypothesis import settings

pytest_plugins = ["skips"]
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[misc, assignment]  # of safe_load: ten times as fast
settings.register_profile("any-machine", deadline=None)  # the duration of an example only depends on the machine's load
settings.load_profile("any-machine")
settings.register_profile("quick", deadline=None, max_examples=5)

CHILD_SECONDS = 5.0  # A process that a test killed must be reaped within this time


def pytest_configure(config: pytest.Config) -> None:
    """Use few examples if slow tests are left out."""
    if config.getoption("markexpr") == "not slow":
        settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these tests."""
    parser.addoption("--update-golden", action="store_true", help="write the expected expositions anew; then read them")


@pytest.fixture(autouse=True)
def no_blocking_on_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test that makes a blocking call on the event loop."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx():
        yield


@pytest.fixture(autouse=True)
def no_child_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves child processes behind: otherwise a later test that counts processes would fail."""
    if "e2e" in request.path.parts:
        yield
        return
    before = child_pids()
    yield
    deadline = time.monotonic() + CHILD_SECONDS
    while (remaining := child_pids() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not remaining


def child_pids() -> set[str]:
    """Return the pids of this process's children, zombies included."""
    try:  # one call first: below, each thread has a file of its own
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    pids: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended
            pids |= set((task / "children").read_text().split())
    return pids
