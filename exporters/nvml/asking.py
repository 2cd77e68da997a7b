"""Calls NVML for one value at a time: a failed call loses only its own value. Runs in the helper process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_FOUND,
    }
)
"""This GPU or this driver does not have the value. That is not an error and is not counted.

NVML_ERROR_NOT_FOUND is one of them: the numbers of MIG devices can have gaps.
"""
_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_CODES = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_").lower()
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}
_UNREADABLE = (ValueError, MemoryError, OverflowError)
"""The Python binding raises these on bytes that are not text, or on an impossible length."""

_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
"""Maps a value type to the union member that holds the value. All fields that the exporter reads are integers."""
NO_SCOPE = 0
ALL_LINKS = 0xFFFFFFFF


class GpuGone(Exception):  # noqa: N818  # a state of the GPU
    """The driver can no longer reach the GPU."""


def error_name(code: int) -> str:
    """Return NVML's name of an error, in lower case; ``other`` for a code that the binding does not know."""
    return _CODES.get(code, "other")


class Asker:
    """Calls NVML functions. ``errors``: failed calls by reason."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call ``function`` and return its value, None without an answer. Raise GpuGone when the GPU is lost."""
        return self.ask_first((function,), *arguments)

    def ask_first(self, functions: Sequence[Callable[..., T]], *arguments: Any) -> T | None:
        """Like ``ask``, with the first of ``functions`` (the preferred one first) that this driver has."""
        for function in functions:
            try:
                return function(*arguments)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    continue
                self._note(error.value)
            except _UNREADABLE:
                self.errors["unreadable"] += 1
            return None
        return None

    def must(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the value of a required function. Raise NVMLError without an answer, GpuGone when the GPU is lost."""
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise GpuGone from None
            raise

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the value of each (field id, scope), None for one without a value. Raise GpuGone when lost."""
        values = self.ask(pynvml.nvmlDeviceGetFieldValues, handle, wanted)
        return [None] * len(wanted) if values is None else [self._value(each) for each in values]

    def _value(self, field: Any) -> int | None:
        # A driver that is older than the field returns "invalid argument".
        if field.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            self._note(field.nvmlReturn)
            return None
        member = _MEMBERS.get(field.valueType)
        if member is None:
            self.errors["unreadable"] += 1
            return None
        return int(getattr(field.value, member))

    def _note(self, code: int) -> None:
        if code in _GONE:
            raise GpuGone
        if code not in UNSUPPORTED:
            self.errors[error_name(code)] += 1
