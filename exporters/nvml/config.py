"""The exporter's section of the configuration."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.sdk.exporter import ExporterConfig

MAX_HANG_SECONDS = 10.0
"""While the driver hangs, a fresh helper gets START_FACTOR times this; the series must not go stale meanwhile."""


class NvmlConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``library``: the path of libnvidia-ml.so.1 where the loader does not find it, as with a driver in a container.

    ``hang_seconds``: a look that takes longer is a driver that hangs. ``hot_celsius``: a core that is as warm as this
    most of the time is hot. ``pcie_throughput``: measure it, which takes the driver 40 ms per GPU at each look.
    ``all_values``: series of every number that the driver gives, some 29 more per GPU, not only of what rules and
    dashboards ask for or is wrong. ``each_nvlink``: series of each NVLink, 90 per GPU, not only of the GPU and of links
    with something wrong.
    """

    library: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    hang_seconds: Annotated[float, msgspec.Meta(ge=0.5, le=MAX_HANG_SECONDS)] = MAX_HANG_SECONDS
    hot_celsius: Annotated[float, msgspec.Meta(ge=30.0, le=150.0)] = 85.0
    pcie_throughput: bool = False
    all_values: bool = False
    each_nvlink: bool = False
