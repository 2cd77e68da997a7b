"""Find exporters by name, in rankwatch and in other packages, and select the enabled ones."""

import importlib
import pkgutil
import sys

import msgspec

import exporters
from agent.app.config import Loaded
from agent.app.yaml_document import nearest
from agent.core.log import Logger
from agent.export.collector_exporter import collector_spec
from agent.export.exporter import ExporterConfig, Spec
from agent.ranks.health import counted_checks
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

GROUP = "rankwatch.exporters"
"""Entry point group of exporters in other packages."""


class Prepared(msgspec.Struct, frozen=True):
    """An enabled exporter: its Spec and its section of the configuration."""

    spec: Spec
    config: ExporterConfig


class ExporterPlan(msgspec.Struct, frozen=True):
    """The exporters that a configuration enables. ``broken``: names of exporters that cannot be imported.

    ``counted``: checks that make a rank unhealthy. ``job_id_variables``: see IdentityConfig.
    """

    enabled: dict[str, Prepared]
    broken: tuple[str, ...]
    counted: frozenset[str] = frozenset()
    job_id_variables: tuple[str, ...] = ()
    thresholds: Thresholds = DEFAULTS


def exporter_names() -> tuple[str, ...]:
    """Return the sorted names of rankwatch's exporters: the modules of the package ``exporters``."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(exporters.__path__)))


def names_in_packages() -> tuple[str, ...]:
    """Return the names of exporters in other packages; takes milliseconds, so call it only for an unknown name."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # most agents never need it

    return tuple(sorted(entry.name for entry in entry_points(group=GROUP)))


def load_spec(name: str) -> Spec:
    """Import exporter ``name`` and return its Spec; raises any error of the import, or TypeError if it has no Spec.

    An entry point names a Spec, or a collector class for prometheus-client. Rankwatch's own exporters take precedence.
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

    _allow_openssl()
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


def _allow_openssl() -> None:
    """Make ``import ssl`` work again: prometheus-client and most collectors need it; see ``leave_out_openssl``.

    A module that was already imported stays without ssl: asyncio has no TLS, and http.client must be imported again.
    """
    if sys.modules.get("ssl", ...) is None:
        del sys.modules["ssl"]
        sys.modules.pop("http.client", None)


def prepare(loaded: Loaded, log: Logger) -> ExporterPlan:
    """Validate every exporter's section and return the enabled exporters; ConfigError names the first error.

    An exporter of another package loads only if the configuration names it. An exporter whose import fails is logged
    and is ``broken``.
    """
    names = exporter_names()
    others = [name for name in loaded.config.exporters if name not in names]
    in_packages = names_in_packages() if others else ()
    for name in others:
        if name not in in_packages:
            raise loaded.error(f"$.exporters.{name}", f"no such exporter{nearest(name, (*names, *in_packages))}")
    enabled, broken = {}, []
    for name in (*names, *others):
        if loaded.config.exporters.get(name) == {"enabled": False}:
            continue  # not even imported
        try:
            spec = load_spec(name)
        except Exception as error:  # noqa: BLE001  # a broken module may raise any error
            log.error("exporter {exporter} could not be imported", exporter=name, error=error)
            broken.append(name)
            continue
        section = loaded.section(name, spec.config)
        if section.enabled is not False:
            enabled[name] = Prepared(spec, section)
    config = loaded.config
    counted = counted_checks(config.health.count, config.health.ignore)
    variables = tuple(config.identity.job_id_variables)
    return ExporterPlan(enabled, tuple(broken), counted, variables, config.verdict)
