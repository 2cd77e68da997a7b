"""Reads the NVLinks of a GPU. Runs in the helper process.

GPU generations count link errors in different counters. For each link and kind of error, several counters are tried in
order. The first one that answers is read from then on.
"""

from __future__ import annotations

from typing import Any, Literal

import pynvml

from exporters.nvml.asking import Asker
from exporters.nvml.queries import RENUMBERED_DRIVER
from exporters.nvml.reading import Link

ErrorKind = Literal["replay", "recovery", "crc", "receive", "phy_retry"]
_Field = tuple[int, int]

_LANE_FIELDS: dict[ErrorKind, str] = {
    "replay": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L{}",
    "recovery": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L{}",
    "crc": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L{}",
}
"""GPUs up to Ampere: one field for each of the first twelve links."""
_LINK_FIELDS: dict[ErrorKind, tuple[int, ...]] = {
    "replay": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,),
    "recovery": (
        pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
        pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    ),
    "crc": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,),
    "receive": (pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,),
    "phy_retry": (pynvml.NVML_FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS,),
}
"""Later GPUs: one field with the link as its scope. The newest field is first."""
_LEGACY_COUNTERS: dict[ErrorKind, int] = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
}
"""Drivers without such fields: one call for each counter."""


class Links:
    """The links of one GPU, while its handle is valid."""

    def __init__(self, driver_major: int) -> None:
        self._driver_major = driver_major
        self._fields: dict[int, dict[ErrorKind, _Field]] = {}
        self._legacy: dict[int, tuple[ErrorKind, ...]] = {}

    def look(self, asker: Asker, handle: Any, count: int | None) -> tuple[Link, ...]:
        """Return all links of the GPU. ``count``: the number of links that the driver reports, None if unknown."""
        most = pynvml.NVML_NVLINK_MAX_LINKS
        return tuple(self._link(asker, handle, number) for number in range(min(count or 0, most)))

    def _link(self, asker: Asker, handle: Any, number: int) -> Link:
        state = asker.ask(pynvml.nvmlDeviceGetNvLinkState, handle, number)
        if state and number not in self._fields:
            self._find_counters(asker, handle, number)
        fields = self._fields.get(number, {})
        values = asker.fields(handle, list(fields.values())) if fields else []
        errors: dict[str, int] = {kind: value for kind, value in zip(fields, values, strict=True) if value is not None}
        for kind in self._legacy.get(number, ()):
            value = asker.ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, number, _LEGACY_COUNTERS[kind])
            if value is not None:
                errors[kind] = value
        return Link(number, None if state is None else state == pynvml.NVML_FEATURE_ENABLED, errors)

    def _find_counters(self, asker: Asker, handle: Any, number: int) -> None:
        """Try all counters of a link that is up. A link that is down may not answer."""
        candidates = [(kind, field) for kind in _LINK_FIELDS for field in self._candidates(kind, number)]
        values = asker.fields(handle, [field for _, field in candidates])
        found: dict[ErrorKind, _Field] = {}
        for (kind, field), value in zip(candidates, values, strict=True):
            if value is not None:
                found.setdefault(kind, field)
        self._fields[number] = found
        self._legacy[number] = tuple(
            kind
            for kind, counter in _LEGACY_COUNTERS.items()
            if kind not in found
            and asker.ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, number, counter) is not None
        )

    def _candidates(self, kind: ErrorKind, number: int) -> list[_Field]:
        fields = [(field, number) for field in _LINK_FIELDS[kind]]
        if kind == "phy_retry" and self._driver_major < RENUMBERED_DRIVER:
            fields = []
        lane = getattr(pynvml, _LANE_FIELDS[kind].format(number), None) if kind in _LANE_FIELDS else None
        return fields if lane is None else [*fields, (lane, 0)]
