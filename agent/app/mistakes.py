"""What to write instead: mistakes that msgspec finds in a configuration, in words of the file. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any

from msgspec import inspect

_NAMES = {
    "object": "a section (key: value)",
    "array": "a list (a line `- value` each, or [value])",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}
_QUOTED = re.compile(r"`([a-z |]+)`")
_PART = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")


def unknown_key(type_: type[Any], path: str, key: str) -> str:
    """The message for a key that a section does not have; ``path`` (``.web``) is where the section is in ``type_``."""
    known = [field.encode_name for each in _at(type_, path) for field in _fields(each)]
    return f"unknown key{nearest(key, known)}" if known else "unknown key"


def nearest(name: str, known: Collection[str]) -> str:
    """Return the end of a message on a name that is none of ``known``: the one that was meant, else all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(known))}"


def in_words(type_: type[Any], path: str, message: str) -> str:
    """msgspec's message on what is at ``path``, with the kinds of values in words, and the values that are allowed."""
    allowed = [str(value) for each in _at(type_, path) for value in _values(each)]
    if message.startswith("Invalid enum value") and allowed:
        return f"{message.removeprefix('Invalid enum value ')[:80]} is none of {', '.join(allowed)}"
    expected, got, found = message.partition(", got ")
    words = _QUOTED.sub(_kinds, expected).replace("Expected ", "expected ", 1)
    return f"{words}{got}{_QUOTED.sub(_kinds, found).partition(' (')[0]}"


def _kinds(match: re.Match[str]) -> str:
    kinds = match[1].split(" | ")
    return " or ".join(_NAMES[each] for each in kinds) if all(each in _NAMES for each in kinds) else match[0]


def _at(type_: type[Any], path: str) -> list[inspect.Type]:
    """Return the types that may stand at a path; none where it leads nowhere."""
    found = [inspect.type_info(type_)]
    for match in _PART.finditer(path):
        found = [below for each in found for below in _below(each, match[1])]
    return found


def _below(found: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    match found:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _below(each, name)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if name is None:
            yield item
        case inspect.DictType(value_type=value) if name is not None:
            yield value
        case inspect.StructType():
            yield from (field.type for field in found.fields if field.encode_name == name)


def _fields(found: inspect.Type) -> Iterator[inspect.Field]:
    match found:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _fields(each)
        case inspect.StructType(fields=fields):
            yield from fields


def _values(found: inspect.Type) -> Iterator[object]:
    match found:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _values(each)
        case inspect.LiteralType(values=values):
            yield from values
        case inspect.EnumType(cls=cls):
            yield from (each.value for each in cls)
