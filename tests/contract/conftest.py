"""What the exporters' data folders need and the repository does not hold."""

from __future__ import annotations

import json
import os

import nvml_stub
import pytest
from bench import DATA


@pytest.fixture(autouse=True)
def nvml_library(request: pytest.FixtureRequest) -> None:
    """The stub of NVIDIA's library, for tests of the exporter that loads it."""
    if request.node.name.endswith("[nvml]") or "[nvml-" in request.node.name:
        nvml_stub.build(DATA / "nvml")


@pytest.fixture(autouse=True)
def held_files(request: pytest.FixtureRequest) -> None:
    """The descriptors of processes that hold files, which are absolute links."""
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
    """The program of the exporter that starts one is its owner's alone, as packages install it, whatever the umask."""
    if "[stacks]" in request.node.name or "[stacks-" in request.node.name:
        (DATA / "stacks/bin/py-spy").chmod(0o755)
