"""A GPU's activity between two looks, from the driver's GPM counters (Hopper and later). Runs in the helper.

At each look the driver fills a sample and compares it with the previous one. A value is the mean over the time between
the two looks. The GPU has no extra work between looks.
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
"""Maps our names (exporters/nvml/fields.py) to the driver's GPM metrics. The values have the driver's units."""


class ActivitySampler:
    """At most two samples of one GPU, while its handle is valid.

    After a failed call this GPU has no activity values until two looks in a row succeed. The calls stop for a GPU
    without such counters, and when the driver refuses permission.
    """

    def __init__(self) -> None:
        self._is_off = False
        self._before: Any = None
        self._spare: Any = None

    def look(self, asker: Asker, handle: Any) -> dict[str, float]:
        """Return the means since the previous look, by the names of METRICS; the first look returns none.

        Raise GpuGone when the driver cannot reach the GPU.
        """
        if self._is_off or not self._is_ready(asker, handle):
            return {}
        if self._ask(asker, pynvml.nvmlGpmSampleGet, handle, self._spare) is None:
            self.free()
            return {}
        before, self._before = self._before, self._spare
        self._spare = before
        return {} if before is None else _between(asker, before, self._before)

    def free(self) -> None:
        """Free the samples in the driver, before NVML is shut down. The next look counts as a first one."""
        for sample in (self._before, self._spare):
            if sample is None:
                continue
            try:
                pynvml.nvmlGpmSampleFree(sample)
            except pynvml.NVMLError:
                continue  # the driver has already freed it
        self._before = self._spare = None

    def _is_ready(self, asker: Asker, handle: Any) -> bool:
        """Return True when the GPU has GPM counters and an unused sample is allocated."""
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
    metrics = zip(METRICS, request.metrics, strict=False)  # request.metrics is longer
    return {name: metric.value for name, metric in metrics if metric.nvmlReturn == pynvml.NVML_SUCCESS}
