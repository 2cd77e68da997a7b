"""What the exporters' data folders need and the repository does not hold."""

from __future__ import annotations

import nvml_stub
import pytest
from bench import DATA


@pytest.fixture(autouse=True)
def nvml_library(request: pytest.FixtureRequest) -> None:
    """The stub of NVIDIA's library, for tests of the exporter that loads it."""
    if request.node.name.endswith("[nvml]") or "[nvml-" in request.node.name:
        nvml_stub.build(DATA / "nvml")
