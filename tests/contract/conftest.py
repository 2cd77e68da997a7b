"""Files that exporters' data directories need and the repository does not have."""

from __future__ import annotations

import json
import os

import nvml_stub
import pytest
from bench import DATA


@pytest.fixture(autouse=True)
def nvml_library(request: pytest.FixtureRequest) -> None:
    """Build the stub of NVIDIA's library for tests of the exporter that loads it."""
    if request.node.name.endswith("[nvml]") or "[nvml-" in request.node.name:
        nvml_stub.build(DATA / "nvml")


@pytest.fixture(autouse=True)
def held_files(request: pytest.FixtureRequest) -> None:
    """Make the descriptors of the recorded processes: absolute links to the files that they hold open."""
    if "[inspector_prom]" in request.node.name or "[inspector_prom-" in request.node.name:
        folder = DATA / "inspector_prom"
        for process in (folder / "proc").iterdir():
            (process / "fd").mkdir(exist_ok=True)
        for pid, name in json.loads((folder / "held.json").read_text()).items():
            link = folder / f"proc/{pid}/fd/9"
            draft = link.with_name(f"draft.{os.getpid()}")
            draft.symlink_to(folder / "dump" / name)
            draft.replace(link)


@pytest.fixture(autouse=True)
def program_of_its_owner(request: pytest.FixtureRequest) -> None:
    """Make the exporter's program writable only by its owner, as packages do, whatever the umask."""
    if "[stacks]" in request.node.name or "[stacks-" in request.node.name:
        (DATA / "stacks/bin/py-spy").chmod(0o755)
