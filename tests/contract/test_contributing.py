"""The example of CONTRIBUTING.md is a real exporter."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType

import bench
import pytest
import test_metric_names as names
from bench import Bench, exposition

from agent.sdk.exporter import NoData

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Provide the example as module `exporters.load`, on a recorded root."""
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    module = ModuleType("exporters.load")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)  # noqa: S102  # our own guide
    monkeypatch.setattr(bench, "DATA", tmp_path)
    (tmp_path / "load").mkdir()
    (tmp_path / "load" / "section.yml").write_text("{}\n")
    return Bench("load", tmp_path)


def test_the_example_works(example: Bench, tmp_path: Path) -> None:
    """The exporter in CONTRIBUTING.md raises NoData without /proc/loadavg, and exports the load with it."""

    async def page() -> str:
        text = exposition(example.families(await example.look()))
        await example.end()
        return text

    with pytest.raises(NoData):
        asyncio.run(page())
    asyncio.run(example.end())
    example = Bench("load", tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "loadavg").write_text("3.25 2.00 1.00 2/300 4711\n")
    assert asyncio.run(page()).splitlines()[-1] == "rankwatch_load_processes 3.25"
    for family in example.spec.families:
        names.check_name(family)
        names.check_help_and_cost(family)
        names.check_labels(family)
