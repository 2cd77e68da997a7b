"""Calls NVML for one value at a time: a failed call loses only its own value. Runs in the helper process.

The driver's GPM counters (Hopper and later) give the activity of a GPU: at each poll the driver fills a sample of them.
An activity value is the mean between the previous sample and this one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
"""These errors mean that the GPU or the driver does not have the value. The exporter does not count them.

NVML_ERROR_NOT_FOUND is such an error: the numbers of MIG devices can have gaps.
"""
_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_CODES = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_").lower()
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}
_UNREADABLE = (ValueError, MemoryError, OverflowError)
"""The Python binding raises these errors on bytes that are not text, or on an impossible length."""

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


class NvmlCalls:
    """Calls NVML functions. ``errors``: failed calls by reason."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()

    def value(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Call ``function`` and return its value, None without an answer. Raise GpuGone when the GPU is lost."""
        return self.first_value((function,), *arguments)

    def first_value(self, functions: Sequence[Callable[..., T]], *arguments: Any) -> T | None:
        """Like ``value``, with the first of ``functions`` (in order of preference) that this driver has."""
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

    def required(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the value of a required function. Raise GpuGone if the GPU is lost, NVMLError on other errors."""
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise GpuGone from None
            raise

    def fields(self, handle: Any, fields: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the value of each (field id, scope), None without a value. Raise GpuGone when the GPU is lost."""
        values = self.value(pynvml.nvmlDeviceGetFieldValues, handle, fields)
        return [None] * len(fields) if values is None else [self._field_value(value) for value in values]

    def _field_value(self, field: Any) -> int | None:
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


METRICS: Mapping[str, int] = {
    "sm_active_percent": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active_percent": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active_percent": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
"""Maps the names in exporters/nvml/fields.py to the driver's GPM metrics. The values have the driver's units."""


class ActivitySampler:
    """At most two samples of one GPU, while its handle is valid.

    After a failed call this GPU has no activity values until two polls in a row succeed. No more calls are made for a
    GPU without GPM counters, or after the driver refused permission.
    """

    def __init__(self) -> None:
        self._is_off = False
        self._previous: Any = None
        self._spare: Any = None

    def look(self, calls: NvmlCalls, handle: Any) -> dict[str, float]:
        """Return the means since the previous poll, by the names of METRICS; the first poll returns no mean.

        Raise GpuGone when the driver cannot reach the GPU.
        """
        if self._is_off or not self._is_ready(calls, handle):
            return {}
        if self._call(calls, pynvml.nvmlGpmSampleGet, handle, self._spare) is None:
            self.free()
            return {}
        self._previous, self._spare = self._spare, self._previous
        return {} if self._spare is None else _between(calls, self._spare, self._previous)

    def free(self) -> None:
        """Free the samples in the driver, before NVML is shut down. The next poll counts as the first."""
        for sample in (self._previous, self._spare):
            if sample is None:
                continue
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                continue  # the driver has already freed it
        self._previous = self._spare = None

    def _is_ready(self, calls: NvmlCalls, handle: Any) -> bool:
        """Return True when the GPU has GPM counters and an unused sample is allocated."""
        if self._previous is None:
            support = self._call(calls, pynvml.nvmlGpmQueryDeviceSupport, handle)
            if support is None:
                return False
            self._is_off = not support.isSupportedDevice
        if not self._is_off and self._spare is None:
            self._spare = self._call(calls, pynvml.nvmlGpmSampleAlloc)
        return self._spare is not None

    def _call(self, calls: NvmlCalls, function: Callable[..., Any], *arguments: Any) -> Any:
        def switching_off(*values: Any) -> Any:
            try:
                return function(*values)
            except pynvml.NVMLError as error:
                self._is_off = error.value == pynvml.NVML_ERROR_NO_PERMISSION
                raise

        return calls.value(switching_off, *arguments)


def _between(calls: NvmlCalls, before: Any, after: Any) -> dict[str, float]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    request.sample1, request.sample2 = before, after
    for slot, number in enumerate(METRICS.values()):
        request.metrics[slot].metricId = number
    if calls.value(pynvml.nvmlGpmMetricsGet, request) is None:
        return {}
    metrics = zip(METRICS, request.metrics, strict=False)  # request.metrics is longer than METRICS
    return {name: metric.value for name, metric in metrics if metric.nvmlReturn == pynvml.NVML_SUCCESS}
