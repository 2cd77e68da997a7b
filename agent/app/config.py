"""The configuration: YAML, validated whole, every mistake named with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agent.api import ExporterConfig
from agent.ranks.health import CHECKS, counted_checks
from agent.web.listen import parse_listen_address

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
DEFAULT_LISTEN_ADDRESS = "127.0.0.1:19028"
DEFAULT_STATE_PATH = "/var/lib/rankwatch/checkpoint"


class ConfigError(ValueError):
    """A configuration that cannot be used; the text says where and why, on one line."""


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``listen_address``: host:port, :port or [address]:port."""

    listen_address: str = DEFAULT_LISTEN_ADDRESS


class StateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``path`` of the checkpoint file; empty keeps none, and counters then start anew with the agent."""

    path: Annotated[str, msgspec.Meta(pattern=r"^[^\0]*$")] = DEFAULT_STATE_PATH


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checks make a rank and the node unhealthy: the default ones and ``count``, without ``ignore``."""

    count: list[str] = []
    ignore: list[str] = []

    def __post_init__(self) -> None:
        """Refuse a check that there is not."""
        for name in (*self.count, *self.ignore):
            if name not in CHECKS:
                raise ValueError(f"{name!r} is none of the checks: {', '.join(sorted(CHECKS))}")

    def counted(self) -> frozenset[str]:
        """The checks that count."""
        return counted_checks(self.count, self.ignore)


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. ``exporters`` holds raw sections: each is validated by its exporter's own type."""

    web: WebConfig = WebConfig()
    state: StateConfig = StateConfig()
    health: HealthConfig = HealthConfig()
    exporters: dict[str, Any] = {}


class Loaded:
    """A parsed file: the configuration, and where in the text each part of it stands.

    ``text`` is the file's, ``source`` names it in messages.
    """

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self._source = source
        self._root = _compose(text, source)
        try:
            raw = yaml.load(text, Loader=yaml.CSafeLoader)  # the safe loader, in C
        except yaml.YAMLError as error:
            raise ConfigError(_yaml_message(error, source)) from None
        self.config = self._convert({} if raw is None else raw, AgentConfig, "$")
        for name, section in self.config.exporters.items():
            self._convert(section, dict[str, Any], f"$.exporters.{name}")
        try:
            parse_listen_address(self.config.web.listen_address)
        except ValueError as error:
            raise self.error("$.web.listen_address", str(error)) from None

    def section(self, name: str, type_: type[ExporterConfig]) -> ExporterConfig:
        """Return exporter ``name``'s section as its own type."""
        found: ExporterConfig = self._convert(self.config.exporters.get(name, {}), type_, f"$.exporters.{name}")
        return found

    def error(self, path: str, message: str) -> ConfigError:
        """An error at ``path`` (such as ``$.web.listen_address``), with the line where it stands."""
        line = _line_of(self._root, path)
        place = f"{self._source}:{line}" if line else self._source
        return ConfigError(f"{place}: {path}: {message}")

    def _convert(self, raw: object, type_: type[Any], prefix: str) -> Any:
        try:
            return msgspec.convert(raw, type_)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            path = (prefix + path.rstrip("`")).replace("[...]", "")
            if unknown := re.search(r"unknown field `([^`]*)`", message):
                path, message = f"{path}.{unknown.group(1)}", "unknown key"
            raise self.error(path, message) from None


def read_config(path: Path) -> str:
    """Return the file's text (blocking); raises ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
        return raw.decode()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None


def _compose(text: str, source: str) -> Node | None:
    try:
        _refuse_tangles(text, source)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(_yaml_message(error, source)) from None
    _refuse_doubles(root, "$", source)
    return root


def _yaml_message(error: yaml.YAMLError, source: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{source}:{error.problem_mark.line + 1}: not valid YAML: {error.problem}"
    return f"{source}: not valid YAML: {' '.join(str(error).split())}"


def _refuse_tangles(text: str, source: str) -> None:
    """Refuse what is nested too deep to walk, and aliases: they make trees without end, or wider than any memory."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{source}:{line}: aliases are not taken: write it out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}:{line}: nested deeper than {MAX_DEPTH}")


def _refuse_doubles(node: Node | None, path: str, source: str) -> None:
    """YAML takes the last of two equal keys without a word; a person who wrote both meant something else."""
    if isinstance(node, SequenceNode):
        for item in node.value:
            _refuse_doubles(item, path, source)
    if not isinstance(node, MappingNode):
        return
    seen = set()
    for key, value in node.value:
        name = key.value if isinstance(key, ScalarNode) else ""
        if name in seen:
            raise ConfigError(f"{source}:{key.start_mark.line + 1}: {path}.{name}: key given twice")
        seen.add(name)
        _refuse_doubles(value, f"{path}.{name}", source)


def _line_of(node: Node | None, path: str) -> int:
    """The line of the deepest part of ``path`` that the text holds; 0 when it holds none."""
    line = 0
    for part in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        if part[0] and isinstance(node, MappingNode):
            entry = next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value == part[0]), None)
            if entry is None:
                return line
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif part[1] and isinstance(node, SequenceNode) and int(part[1]) < len(node.value):
            node = node.value[int(part[1])]
            line = node.start_mark.line + 1
        else:
            return line
    return line
