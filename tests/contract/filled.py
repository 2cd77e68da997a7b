"""Makes plain values (dicts, lists, numbers) in which every field of a type is set, as in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec import inspect


def filled(kind: Any, raw: object = None) -> Any:
    """Return a msgpack value of this type in which all numbers differ; ``raw`` stands for any Raw."""
    return _Filler(raw).of(inspect.type_info(kind))


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths in ``before`` that are missing or different in ``after``; ``after`` can have more paths."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after[key], f"{path}.{key}") if key in after else (f"{path}.{key}",)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for number, value in enumerate(before):
            yield from lost(value, after[number], f"{path}[{number}]")
    elif before != after:
        yield path


class _Filler:
    """Fills one value; each number is greater by one than the number before."""

    def __init__(self, raw: object) -> None:
        self._raw = raw
        self._numbers = count(3)
        self._makers: dict[type[inspect.Type], Callable[[Any], Any]] = {
            inspect.BoolType: lambda _: True,
            inspect.IntType: self._number,
            inspect.FloatType: lambda kind: float(self._number(kind)),
            inspect.StrType: lambda kind: "x" * max(1, kind.min_length or 0),
            inspect.BytesType: lambda _: b"x",
            inspect.NoneType: lambda _: None,
            inspect.RawType: lambda _: self._raw,
            inspect.AnyType: lambda _: "any",
            inspect.EnumType: lambda kind: next(iter(kind.cls)).value,
            inspect.LiteralType: lambda kind: kind.values[0],
            inspect.UnionType: lambda kind: self.of(next(part for part in kind.types if not _is_none(part))),
            inspect.DictType: lambda kind: {_key(self.of(kind.key_type)): self.of(kind.value_type)},
            inspect.TupleType: lambda kind: [self.of(item_type) for item_type in kind.item_types],
            inspect.NamedTupleType: lambda kind: [self.of(field.type) for field in kind.fields],
            inspect.StructType: self._struct,
        }
        for many in (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType):
            self._makers[many] = self._list

    def of(self, kind: inspect.Type) -> Any:
        """Return a value of a type."""
        while isinstance(kind, inspect.Metadata):
            kind = kind.type
        return self._makers[type(kind)](kind)

    def _number(self, kind: inspect.IntType | inspect.FloatType) -> int:
        number = next(self._numbers)
        if kind.le is not None and number > kind.le:
            return int(kind.le)
        if kind.lt is not None and number >= kind.lt:
            return int(kind.lt) - 1
        return max(number, int(kind.ge or 0))

    def _list(self, kind: Any) -> list[Any]:
        return [self.of(kind.item_type) for _ in range(max(1, kind.min_length or 0))]

    def _struct(self, kind: inspect.StructType) -> Any:
        if kind.array_like:
            return [*([kind.tag] if kind.tag is not None else []), *(self.of(field.type) for field in kind.fields)]
        fields = {field.encode_name: self.of(field.type) for field in kind.fields}
        return fields if kind.tag_field is None else {kind.tag_field: kind.tag, **fields}


def _key(value: Any) -> Any:
    return tuple(map(_key, value)) if isinstance(value, list) else value


def _is_none(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.NoneType)


def read_again(kind: Any, section: bytes) -> Any:
    """Return, as plain values, the parts of a section that this type reads and writes."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.msgpack.decode(section, type=kind)))
