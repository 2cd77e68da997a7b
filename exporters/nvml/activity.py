"""A GPU's activity between two looks, by the driver's GPM counters (Hopper and later). Runs in the helper.

The driver fills a sample at each look and compares it with the one before, so that a value is the mean of all the time
between the looks, and asking costs the GPU nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from exporters.nvml.asking import Asker

METRICS: Mapping[str, int] = {
    "sm_active_percent": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active_percent": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active_percent": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
"""By our names for them (exporters/nvml/fields.py), in the driver's units."""


class ActivitySampler:
    """The samples of one GPU, two at most, as long as its handle is good.

    A failed call costs this GPU's activity until two looks in a row succeed. A GPU without such counters, or a
    missing permission, ends the calls.
    """

    def __init__(self) -> None:
        self._is_off = False
        self._before: Any = None
        self._spare: Any = None

    def look(self, asker: Asker, handle: Any) -> dict[str, float]:
        """Means since the look before, by the names above; empty at the first. GpuGone when there is no GPU."""
        if self._is_off or not self._is_ready(asker, handle):
            return {}
        if self._ask(asker, pynvml.nvmlGpmSampleGet, handle, self._spare) is None:
            self.free()
            return {}
        before, self._before = self._before, self._spare
        self._spare = before
        return {} if before is None else _between(asker, before, self._before)

    def free(self) -> None:
        """Give the samples back to the driver, before NVML is shut down; the next look is a first one."""
        for sample in (self._before, self._spare):
            if sample is None:
                continue
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                continue  # the driver has forgotten us already
        self._before = self._spare = None

    def _is_ready(self, asker: Asker, handle: Any) -> bool:
        """Whether the GPU has such counters, and a sample is free."""
        if self._before is None:
            support = self._ask(asker, pynvml.nvmlGpmQueryDeviceSupport, handle)
            if support is None:
                return False
            self._is_off = not support.isSupportedDevice
        if not self._is_off and self._spare is None:
            self._spare = self._ask(asker, pynvml.nvmlGpmSampleAlloc)
        return self._spare is not None

    def _ask(self, asker: Asker, function: Callable[..., Any], *arguments: Any) -> Any:
        def noting(*values: Any) -> Any:
            try:
                return function(*values)
            except pynvml.NVMLError as error:
                self._is_off = error.value == pynvml.NVML_ERROR_NO_PERMISSION
                raise

        return asker.ask(noting, *arguments)


def _between(asker: Asker, before: Any, after: Any) -> dict[str, float]:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    request.sample1, request.sample2 = before, after
    for slot, number in enumerate(METRICS.values()):
        request.metrics[slot].metricId = number
    if asker.ask(pynvml.nvmlGpmMetricsGet, request) is None:
        return {}
    metrics = zip(METRICS, request.metrics, strict=False)  # the array is longer
    return {name: metric.value for name, metric in metrics if metric.nvmlReturn == pynvml.NVML_SUCCESS}
