"""The wheel, installed as on a node: from the lock, in its own environment, run from an empty directory."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent import __version__
from agent.app.discovery import exporter_names, load_spec

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "data" / "inspector" / "base8"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
INSTALL_SECONDS = 900


def python(executable: Path | str, *arguments: str | Path, cwd: Path | None = None) -> str:
    """Run a Python, which must succeed, and return its standard output."""
    command = [executable, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the wheel, built with the installed packages."""
    directory = tmp_path_factory.mktemp("wheel")
    python(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, ROOT)
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the directory of programs in a new environment with the locked dependencies and the wheel."""
    directory = tmp_path_factory.mktemp("opt") / "rankwatch"
    venv.create(directory, with_pip=True)
    executable = directory / "bin" / "python"
    python(executable, *PIP, "install", "--require-hashes", "-r", ROOT / "requirements.lock")
    python(executable, *PIP, "install", "--no-deps", wheel)
    python(executable, *PIP, "check")
    return directory / "bin"


@pytest.mark.timeout(INSTALL_SECONDS)
def test_wheel_holds_the_two_packages(wheel: Path) -> None:
    """The wheel has agent and exporters, both marked as typed, and its metadata."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"agent", "exporters", f"rankwatch-{__version__}.dist-info"}
    assert {"agent/py.typed", "exporters/py.typed"} <= set(names)
    expected = {str(path.relative_to(ROOT)) for top in ("agent", "exporters") for path in (ROOT / top).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == expected


@pytest.mark.timeout(INSTALL_SECONDS)
def test_command_and_module_work_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    """The command and `python -I -m agent` run without a file of the checkout."""
    for command in ([installed / "rankwatch"], [installed / "python", "-I", "-m", "agent"]):
        assert python(*command, "--version", cwd=tmp_path) == f"rankwatch {__version__}\n"
    example = ROOT / "deploy" / "systemd" / "rankwatch.yml"
    said = python(installed / "python", "-I", "-m", "agent", f"--config.file={example}", "--check-config", cwd=tmp_path)
    enabled = [name for name in exporter_names() if load_spec(name).config().enabled is not False]
    assert f"the configuration is valid; exporters: {', '.join(enabled)}" in said


HELPER = """
import asyncio
from agent.core.clock import Clock
from agent.helper.client import Helpers
from exporters.ras.query.runner import READER
from exporters.ras.report.json_report import ReadRequest

async def main():
    helper = Helpers(Clock()).lend(READER)
    print((await helper.call(ReadRequest(True, frozenset()), 20.0)).error)
    await helper.stop()

asyncio.run(main())
"""


@pytest.mark.timeout(INSTALL_SECONDS)
def test_a_helper_process_finds_what_is_installed(installed: Path, tmp_path: Path) -> None:
    """A helper process of the installed agent imports its target and refuses an empty report."""
    said = python(installed / "python", "-I", "-c", HELPER, cwd=tmp_path)
    assert said == "not JSON: Input data was truncated\n"


@pytest.mark.timeout(INSTALL_SECONDS)
def test_once_reads_recorded_data(installed: Path, tmp_path: Path) -> None:
    """`--once` counts every recorded operation and reads only the configured paths."""
    config = tmp_path / "rankwatch.yml"
    config.write_text(f'exporters: {{inspector: {{paths: ["{RECORDS}"]}}, process: {{enabled: false}}}}\n')
    page = python(installed / "python", "-I", "-m", "agent", f"--config.file={config}", "--once", cwd=tmp_path)
    operations: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "rankwatch_collective_operations_total":
                operations[sample.labels["collective"]] += int(sample.value)
    lines = [line for path in RECORDS.glob("*.log") for line in path.read_text().splitlines()]
    assert operations == Counter(json.loads(line)["coll_perf"]["coll"] for line in lines)
