"""What every test gets."""

import inspect
from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

pytest_plugins = ["skips"]
settings.register_profile("any-machine", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("any-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--update-golden", action="store_true", help="write the expected expositions anew; then read them")


@pytest.fixture(autouse=True)
def no_blocking_on_the_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test that makes a blocking call on the event loop."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    with blockbuster_ctx():
        yield
