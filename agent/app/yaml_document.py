"""One YAML document: its values, and the line on which each of them stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, Event
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import Resolver

from agent.app import mistakes

MAX_DEPTH = 32
_SHOWN_CHARACTERS = 40
"""Of a value that cannot be read, in its message."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the text says where and why, on one line."""


class Document:
    """A parsed text. ``value``: plain Python objects, None for an empty text; ``source`` names the text in messages.

    ConfigError for a text that is not YAML, that uses aliases, gives a key twice or nests deeper than MAX_DEPTH, or
    with a value that YAML cannot construct (a date without such a day, a number of 5,000 digits).
    """

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        loader = _Loader(text, source)
        try:
            self._root: Node | None = loader.get_single_node()
            _refuse_doubles(self._root, "$", source)
            self.value: object = None if self._root is None else loader.construct_document(self._root)
        except yaml.YAMLError as error:
            raise ConfigError(_yaml_message(error, source)) from None

    def error(self, path: str, message: str) -> ConfigError:
        """An error at ``path`` (such as ``$.web.listen_address``), with the line where it stands."""
        line = _line_of(self._root, path)
        position = f"{self._source}:{line}" if line else self._source
        return ConfigError(f"{position}: {path}: {message}")

    def convert(self, raw: object, type_: type[Any], prefix: str) -> Any:
        """Return ``raw``, the part at ``prefix``, as ``type_``; ConfigError names the first mistake and its place."""
        try:
            return msgspec.convert(raw, type_)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            below = path.rstrip("`")
            path = (prefix + below).replace("[...]", "")
            if unknown := re.search(r"unknown field `([^`]*)`", message):
                key = unknown.group(1)
                raise self.error(f"{path}.{key}", mistakes.unknown_key(type_, below, key)) from None
            raise self.error(path, mistakes.in_words(type_, below, message)) from None


class _Loader(Composer, SafeConstructor, Resolver):
    """Composes and constructs from the events of the C parser, which are looked at once, on their way."""

    def __init__(self, text: str, source: str) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._source = source
        self._events = _bounded(text, source)
        self._ahead: Event | None = None

    def check_event(self, *choices: type[Event]) -> bool:
        event = self.peek_event()
        return event is not None and (not choices or isinstance(event, choices))

    def peek_event(self) -> Event | None:
        if self._ahead is None:
            self._ahead = next(self._events, None)
        return self._ahead

    def get_event(self) -> Event | None:
        event, self._ahead = self.peek_event(), None
        return event

    def construct_object(self, node: Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, ConfigError):
            raise
        except Exception:  # noqa: BLE001  # whatever its constructors raise: ValueError, IndexError, AttributeError, ...
            text = str(node.value)[:_SHOWN_CHARACTERS] if isinstance(node, ScalarNode) else node.tag
            line = node.start_mark.line + 1
            raise ConfigError(
                f"{self._source}:{line}: {text!r} cannot be read; is it meant as text? quote it"
            ) from None


def _bounded(text: str, source: str) -> Iterator[Event]:
    """The events; ConfigError for nesting beyond the bound, and for aliases: they make trees wider than any memory."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{source}:{line}: aliases are not taken: write it out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}:{line}: nested deeper than {MAX_DEPTH}")
        yield event


def _yaml_message(error: yaml.YAMLError, source: str) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{source}:{error.problem_mark.line + 1}: not valid YAML: {error.problem}"
    return f"{source}: not valid YAML: {' '.join(str(error).split())}"


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
    """Return the line of the deepest part of ``path`` that the text holds; 0 when it holds none."""
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
