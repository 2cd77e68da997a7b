"""A YAML document: values, the line of each value, and error messages that suggest a correction."""

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import yaml
from msgspec import inspect
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 32
_SHOWN_CHARACTERS = 40
"""Length of the part of an unreadable value that a message shows."""
_PART = re.compile(r"\.([^.\[]+)|\[(\d*|\.\.\.)\]")


class ConfigError(ValueError):
    """An invalid configuration; the message gives the position in the file and the reason, on one line."""


class Document:
    """A parsed YAML text. ``value``: plain Python objects, None for an empty text. ``source``: name in messages.

    Raises ConfigError if the text is not YAML, uses aliases, repeats a key, nests deeper than MAX_DEPTH, or has a value
    that YAML cannot construct (an impossible date, a number of 5,000 digits).
    """

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        try:
            _refuse_wide_and_deep(text, source)
            loader = _Loader(text)
            self._root: Node | None = loader.get_single_node()
            _refuse_doubles(self._root, "$", source)
            self.value: object = None if self._root is None else loader.construct_document(self._root)
        except yaml.YAMLError as error:
            if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
                raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
            problem = f"{error.problem}{_CHARACTER_HINT if error.problem == _NO_TOKEN else ''}"
            line = error.problem_mark.line + 1
            raise ConfigError(f"{source}:{line}: not valid YAML: {problem}") from None

    def error(self, path: str, message: str) -> ConfigError:
        """Return an error at ``path`` (such as ``$.web.listen_address``) with its line."""
        line = _line_of(self._root, path)
        position = f"{self._source}:{line}" if line else self._source
        return ConfigError(f"{position}: {path}: {message}")

    def convert(self, raw: object, type_: type[Any], prefix: str) -> Any:
        """Return ``raw``, the part at ``prefix``, as ``type_``; ConfigError names the first error and its line."""
        try:
            return msgspec.convert(raw, type_)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            below = path.rstrip("`")
            path = (prefix + below).replace("[...]", "")
            if unknown := re.search(r"unknown field `([^`]*)`", message):
                key = unknown.group(1)
                known = [
                    field.encode_name for possible in _at(type_, below) for field in getattr(possible, "fields", ())
                ]
                hint = nearest(key, known) if known else ""
                raise self.error(f"{path}.{key}", f"unknown key{hint}") from None
            raise self.error(path, _with_choices(type_, below, message)) from None


class _Loader(yaml.CSafeLoader):
    def construct_object(self, node: Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception:  # noqa: BLE001  # constructors raise ValueError, IndexError, AttributeError, ...
            text = str(node.value)[:_SHOWN_CHARACTERS] if isinstance(node, ScalarNode) else node.tag
            problem = f"{text!r} cannot be read; if it is text, quote it"
            raise ConstructorError(None, None, problem, node.start_mark) from None


_NO_TOKEN = "found character that cannot start any token"  # noqa: S105  # libyaml's message, no secret
_CHARACTER_HINT = ": a tab? Indent with spaces, and quote values that begin with @, ` or %"


def _refuse_wide_and_deep(text: str, source: str) -> None:
    """Refuse nesting deeper than MAX_DEPTH, which crashes libyaml, and aliases, which can expand to any size."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{source}:{line}: aliases are not supported: repeat the value")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}:{line}: nested deeper than {MAX_DEPTH}")


def _refuse_doubles(node: Node | None, path: str, source: str) -> None:
    """Refuse equal keys: YAML would silently use only the last value."""
    if isinstance(node, SequenceNode):
        for item in node.value:
            _refuse_doubles(item, path, source)
    if not isinstance(node, MappingNode):
        return
    seen = set()
    for key, value in node.value:
        name = key.value if isinstance(key, ScalarNode) else ""
        if name in seen:
            raise ConfigError(f"{source}:{key.start_mark.line + 1}: {path}.{name}: duplicate key")
        seen.add(name)
        _refuse_doubles(value, f"{path}.{name}", source)


def _line_of(node: Node | None, path: str) -> int:
    """Return the line of the deepest existing part of ``path`` in the text; 0 if no part exists."""
    line = 0
    for part in _PART.findall(path):
        if part[0] and isinstance(node, MappingNode):
            entry = next(((k, v) for k, v in node.value if isinstance(k, ScalarNode) and k.value == part[0]), None)
            if entry is None:
                return line
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif part[1].isdecimal() and isinstance(node, SequenceNode) and int(part[1]) < len(node.value):
            node = node.value[int(part[1])]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def nearest(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the closest known name, else all known names."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"


_KINDS = re.compile("`([^`]+)`")
_WORDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "nothing",
    "array": "a list ([a, b])", "object": "a mapping (name: value)",
}  # fmt: skip
"""msgspec's names of types, in terms of YAML."""


def _with_choices(type_: type[Any], path: str, message: str) -> str:
    """Return msgspec's message about the value at ``path``; for an invalid choice it lists the allowed values."""
    allowed = [str(value) for possible in _at(type_, path) for value in _values(possible)]
    if message.startswith("Invalid enum value") and allowed:
        return f"{message.removeprefix('Invalid enum value ')[:80]} is not one of {', '.join(allowed)}"
    if "regex '^/" in message and "%j" not in message:
        return "Expected an absolute path (/...)"
    return _KINDS.sub(lambda match: " or ".join(_WORDS.get(kind, kind) for kind in match[1].split(" | ")), message)


def _at(type_: type[Any], path: str) -> list[inspect.Type]:
    """Return the types allowed at a path, with unions split; empty if no type has this path."""
    types = _apart(inspect.type_info(type_))
    for match in _PART.finditer(path):
        types = [kind for parent in types for below in _below(parent, match[1]) for kind in _apart(below)]
    return types


def _apart(kind: inspect.Type) -> list[inspect.Type]:
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _below(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    match kind:
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if name is None:
            yield item
        case inspect.DictType(value_type=value) if name is not None:
            yield value
        case inspect.StructType():
            yield from (field.type for field in kind.fields if field.encode_name == name)


def _values(kind: inspect.Type) -> list[object]:
    match kind:
        case inspect.LiteralType(values=values):
            return list(values)
        case inspect.EnumType(cls=cls):
            return [member.value for member in cls]
        case inspect.BoolType():
            return ["true", "false"]
    return []
