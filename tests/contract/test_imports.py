"""Who may import what, and what nobody may do: read from the source itself."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent.app.discovery import exporter_names

ROOT = Path(__file__).parents[2]
NAMES = exporter_names()
HELPERS_MAY = ("agent.system.inside.", "agent.core.prometheus.", "agent.core.hosts.", "agent.helper.by_user.")
"""What a helper's side imports directly: agent.sdk would load the whole agent there."""
THIRD_PARTY = {"h11", "msgspec", "prometheus_client", "psutil", "pynvml", "yaml"}
MODULES_NEED_A_REASON = {"subprocess", "socket", "multiprocessing", "http", "urllib"}
CALLS_NEED_A_REASON = re.compile(
    r"os\.(system|popen|fork|exec|spawn|posix_spawn)"
    r"|asyncio\.(open_connection|open_unix_connection|start_server|start_unix_server|create_subprocess)"
)
SHARED_POOL = {"to_thread", "run_in_executor", "ThreadPoolExecutor", "set_default_executor"}


def sources(*places: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file of these modules or packages, parsed."""
    for place in places:
        found = [ROOT / f"{place}.py"] if (ROOT / f"{place}.py").exists() else sorted((ROOT / place).rglob("*.py"))
        assert found, place
        for path in found:
            yield path, parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """A file, parsed once for all tests."""
    return ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    """The full names that a module imports, at its top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attributes(tree: ast.Module) -> Iterator[str]:
    """The names behind a dot, with a plain name's before it: os.fork, loop.run_in_executor."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield f"{node.value.id if isinstance(node.value, ast.Name) else ''}.{node.attr}"


@pytest.mark.parametrize("name", NAMES)
def test_an_exporter_imports_the_seam_alone(name: str) -> None:
    """Of the agent an exporter imports agent.sdk only; besides that itself, the standard library, what we depend on."""
    for path, tree in sources(f"exporters/{name}"):
        for module in imports(tree):
            top = module.partition(".")[0]
            seam = module.startswith(("agent.sdk.", *HELPERS_MAY))
            own = module.startswith(f"exporters.{name}.")
            assert seam or own or top in THIRD_PARTY or top in sys.stdlib_module_names, f"{path}: {module}"


@pytest.mark.parametrize("name", NAMES)
def test_an_exporter_starts_and_calls_nobody_without_a_reason(name: str) -> None:
    """A program started or a connection made needs a line `Needs MODULE: reason` in the exporter's docstring."""
    modules = list(sources(f"exporters/{name}"))
    said = ast.get_docstring(modules[0][1]) or ""
    for path, tree in modules:
        used = {module.partition(".")[0] for module in imports(tree)} & MODULES_NEED_A_REASON
        used |= {name for name in attributes(tree) if CALLS_NEED_A_REASON.match(name)}
        unsaid = [each for each in sorted(used) if f"Needs {each}: " not in said]
        assert unsaid == [], path


def test_the_agent_names_no_exporter() -> None:
    """The agent finds exporters by looking: it neither imports one nor holds the name of its module."""
    for path, tree in sources("agent"):
        for module in imports(tree):
            assert not module.startswith("exporters."), f"{path}: {module}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not any(f"exporters.{name}" in node.value for name in NAMES), f"{path}:{node.lineno}"


def test_nobody_uses_the_shared_thread_pool() -> None:
    """Six updates that hang would starve everybody: blocking work runs in a thread of its owner's."""
    for path, tree in sources("agent", "exporters"):
        used = {name.rpartition(".")[2] for name in (*attributes(tree), *imports(tree))}
        assert not used & SHARED_POOL, path


def test_no_two_test_modules_share_a_name() -> None:
    """Test folders are no packages: of two modules of one name the second would not be collected."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
