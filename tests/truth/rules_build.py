"""deploy/prometheus/build.py as a module: it is a program of its own, in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", DEPLOY / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _load()
