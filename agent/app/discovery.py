"""Which exporters there are, and the one that goes by a name; a module is imported only when it is wanted."""

from __future__ import annotations

import importlib
import pkgutil

import exporters
from agent.export.exporter import Spec


def exporter_names() -> tuple[str, ...]:
    """The names of all exporters, in order: the modules of the package ``exporters``."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(exporters.__path__)))


def load_spec(name: str) -> Spec:
    """Import exporter ``name`` and return its SPEC; raises whatever its import raises, TypeError without a SPEC."""
    spec = getattr(importlib.import_module(f"exporters.{name}"), "SPEC", None)
    if not isinstance(spec, Spec) or spec.name != name:
        raise TypeError(f"exporters/{name} has no SPEC of that name")
    return spec
