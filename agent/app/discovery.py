"""Exporters by name: our own, and those of other installed packages. Imports a module only when it is wanted."""

from __future__ import annotations

import importlib
import pkgutil

import exporters
from agent.export.collector_exporter import collector_spec
from agent.export.exporter import Spec

GROUP = "rankwatch.exporters"
"""The entry point group in which other packages name their exporters."""


def exporter_names() -> tuple[str, ...]:
    """Return the names of our exporters, in order: the modules of the package ``exporters``."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(exporters.__path__)))


def names_in_packages() -> tuple[str, ...]:
    """Return the names of exporters in other packages. Takes some milliseconds: call it for an unknown name alone."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # most agents never need it

    return tuple(sorted(entry.name for entry in entry_points(group=GROUP)))


def load_spec(name: str) -> Spec:
    """Import exporter ``name``; raises whatever its import raises, TypeError where it is none.

    An entry point names a Spec, or a collector's class for prometheus-client. Our own exporters come first.
    """
    try:
        module = importlib.import_module(f"exporters.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"exporters.{name}":
            raise
        return _spec_in_package(name)
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, Spec) or spec.name != name:
        raise TypeError(f"exporters/{name} has no SPEC of that name")
    return spec


def _spec_in_package(name: str) -> Spec:
    from importlib.metadata import entry_points  # noqa: PLC0415  # most agents never need it

    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if len(entries) != 1:
        raise TypeError(f"{len(entries)} packages have an exporter {name}")
    target = entries[0].load()
    if isinstance(target, Spec):
        if target.name != name:
            raise TypeError(f"the entry point {name} is a Spec of another name, {target.name}")
        return target
    if not callable(target):
        raise TypeError(f"the entry point {name} is neither a Spec nor a collector's class")
    return collector_spec(name, target)
