"""Allowed imports between packages, and forbidden calls, checked in the source."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from agent.app.discovery import exporter_names

ROOT = Path(__file__).parents[2]
NAMES = exporter_names()
HELPERS_MAY = (
    "agent.system.inside.",
    "agent.core.prometheus.",
    "agent.core.hosts.",
    "agent.helper.by_user.",
    "agent.tail.shares.",
)
"""Modules that code in a helper may import directly: there agent.sdk would load the whole agent."""
THIRD_PARTY = {"h11", "msgspec", "prometheus_client", "psutil", "pynvml", "yaml"}
MODULES_NEED_A_REASON = {"subprocess", "socket", "multiprocessing", "http", "urllib"}
CALLS_NEED_A_REASON = re.compile(
    r"os\.(system|popen|fork|exec|spawn|posix_spawn)"
    r"|asyncio\.(open_connection|open_unix_connection|start_server|start_unix_server|create_subprocess)"
)
SHARED_POOL = {"to_thread", "run_in_executor", "ThreadPoolExecutor", "set_default_executor"}


class Source(NamedTuple):
    """A Python file, with its imports, names and strings."""

    path: Path
    name: str
    """Path from the repository's root."""
    docstring: str
    imports: list[str]
    """Full names of imports, at the top or inside functions."""
    dotted: list[str]
    """Dotted names: os.fork, loop.run_in_executor."""
    classes: list[str]
    texts: list[tuple[int, str]]
    """Strings, with their lines."""


def sources(*places: str) -> Iterator[Source]:
    """Yield every Python file of these modules or packages."""
    for package in places:
        files = (
            [ROOT / f"{package}.py"] if (ROOT / f"{package}.py").exists() else sorted((ROOT / package).rglob("*.py"))
        )
        assert files, package
        yield from map(parsed, files)


@cache
def parsed(path: Path) -> Source:
    """Return a parsed file; each is parsed once for all tests."""
    tree = ast.parse(path.read_text(), str(path))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    source = Source(path, path.relative_to(ROOT).as_posix(), ast.get_docstring(tree) or "", [], [], classes, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            source.dotted.append(f"{node.value.id if isinstance(node.value, ast.Name) else ''}.{node.attr}")
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                source.texts.append((node.lineno, node.value))
        elif isinstance(node, ast.Import):
            source.imports.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            source.imports.extend(f"{node.module}.{alias.name}" for alias in node.names)
    return source


def test_an_exporter_imports_the_seam_alone() -> None:
    """An exporter imports only agent.sdk, itself, the standard library, the runtime packages, and the modules in
    HELPERS_MAY."""
    for name in NAMES:
        for source in sources(f"exporters/{name}"):
            for module in source.imports:
                top = module.partition(".")[0]
                seam = module.startswith(("agent.sdk.", *HELPERS_MAY))
                own = module.startswith(f"exporters.{name}.")
                assert seam or own or top in THIRD_PARTY or top in sys.stdlib_module_names, (source.name, module)


def test_an_exporter_starts_processes_and_connections_only_with_a_reason() -> None:
    """An exporter that starts a program or connects has a line `Needs MODULE: reason` in its docstring."""
    for name in NAMES:
        modules = list(sources(f"exporters/{name}"))
        for source in modules:
            used = {module.partition(".")[0] for module in source.imports} & MODULES_NEED_A_REASON
            used |= {name for name in source.dotted if CALLS_NEED_A_REASON.match(name)}
            unsaid = [name for name in sorted(used) if f"Needs {name}: " not in modules[0].docstring]
            assert unsaid == [], source.name


def test_the_agent_names_no_exporter() -> None:
    """The agent neither imports an exporter nor contains the name of its module."""
    for source in sources("agent"):
        assert not [module for module in source.imports if module.startswith("exporters.")], source.name
        for line, text in source.texts:
            assert not any(f"exporters.{name}" in text for name in NAMES), f"{source.name}:{line}"


def test_no_module_uses_the_shared_thread_pool() -> None:
    """No module uses the default executor: hanging updates would block it."""
    for source in sources("agent", "exporters"):
        used = {name.rpartition(".")[2] for name in (*source.dotted, *source.imports)}
        assert not used & SHARED_POOL, source.name


def test_no_two_classes_share_a_name() -> None:
    """A public class name is used once."""
    places = defaultdict(set)
    for source in sources("agent", "exporters"):
        for name in source.classes:
            if not name.startswith("_"):
                places[name].add(source.name)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_two_test_modules_share_a_name() -> None:
    """Test modules of all directories have different names, because pytest needs that."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
