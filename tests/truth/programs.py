"""Programs of deploy/ as modules, because they are in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


def load_program(path: Path) -> ModuleType:
    """Import the program at this path under its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_program(DEPLOY / "build.py")
"""The program that builds the rules."""
