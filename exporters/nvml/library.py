"""NVML in the helper process: initialised once, with handles of all GPUs and the events that the driver collects.

Only this module loads NVIDIA's library, because the library may hang. While NVML stays open, the GPUs stay initialised
(as with persistence mode), and the driver collects events between polls.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pynvml

from exporters.nvml import queries
from exporters.nvml.calls import ActivitySampler, GpuGone, NvmlCalls, error_name
from exporters.nvml.queries import Links
from exporters.nvml.reading import MAX_EVENTS, MAX_GPUS, GpuReading, LookAnswer, LookRequest, XidEvent

DRAIN_SECONDS = 1.0  # A poll reads events for at most this time. The driver keeps further events for the next poll.


def look(request: LookRequest, body: bytes) -> LookAnswer:
    """Poll all GPUs. The helper process calls this function (agent/helper/serve.py). ``body`` is not used."""
    return _LIBRARY.look(request)


class NvmlLibrary:
    """The NVML library, whether initialised or not."""

    def __init__(self) -> None:
        self._devices: list[GpuDevice] | None = None
        self._events: Any = None
        self._loaded: Any = None
        self._driver = self._cuda = ""

    def look(self, request: LookRequest) -> LookAnswer:
        """Return the readings of all GPUs and the events since the last poll."""
        calls = NvmlCalls()
        events: list[XidEvent] = []
        if self._devices is not None and (request.reopen or not self._is_current()):
            events += self._drain(calls)
            self._close()
        try:
            if self._devices is None:
                self._devices = self._open(request.library, calls)
        except GpuGone:  # the driver is present, but reaches no GPU
            return self._answer((), events, calls)
        except pynvml.NVMLError as error:
            return LookAnswer(error_name(error.value), events=tuple(events), errors=dict(calls.errors))
        readings = (device.read(calls) for device in self._devices)
        gpus = tuple(reading for reading in readings if reading is not None)
        events += self._drain(calls)
        return self._answer(gpus, events, calls)

    def _answer(self, gpus: tuple[GpuReading, ...], events: list[XidEvent], calls: NvmlCalls) -> LookAnswer:
        return LookAnswer("", gpus, tuple(events), dict(calls.errors), self._driver, self._cuda)

    def _is_current(self) -> bool:
        """Return False when GPUs were added or removed, or the driver was loaded again."""
        try:
            return self._devices is not None and min(pynvml.nvmlDeviceGetCount(), MAX_GPUS) == len(self._devices)
        except pynvml.NVMLError:
            return False

    def _open(self, library: str, calls: NvmlCalls) -> list[GpuDevice]:
        if library and self._loaded is None:
            try:
                self._loaded = ctypes.CDLL(library)  # pynvml loads by name and gets this loaded library
            except OSError:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) from None
        calls.required(pynvml.nvmlInit)
        try:
            return self._devices_and_events(calls)
        except (pynvml.NVMLError, GpuGone):
            self._close()
            raise

    def _devices_and_events(self, calls: NvmlCalls) -> list[GpuDevice]:
        self._driver = queries.text(calls, pynvml.nvmlSystemGetDriverVersion)
        cuda = calls.value(pynvml.nvmlSystemGetCudaDriverVersion)
        self._cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
        count = calls.required(pynvml.nvmlDeviceGetCount)
        if count > MAX_GPUS:
            calls.errors["too_many_gpus"] += count - MAX_GPUS
        devices = [GpuDevice(index, _major(self._driver), calls) for index in range(min(count, MAX_GPUS))]
        self._events = calls.value(pynvml.nvmlEventSetCreate)
        for device in devices:
            device.register(self._events, calls)
        return devices

    def _close(self) -> None:
        for device in self._devices or ():
            device.activity.free()
        self._devices = None
        for function, arguments in ((pynvml.nvmlEventSetFree, (self._events,)), (pynvml.nvmlShutdown, ())):
            try:
                function(*arguments)
            except pynvml.NVMLError:
                continue  # the driver has already freed it
        self._events = None

    def _drain(self, calls: NvmlCalls) -> list[XidEvent]:
        """Return the events that the driver has collected. Equal events become one event with a count. Never waits."""
        counts = Counter(self._event_codes(calls))
        return [XidEvent(uuid, xid, count) for (uuid, xid), count in counts.items()]

    def _event_codes(self, calls: NvmlCalls) -> Iterator[tuple[str, int]]:
        """Yield UUID and Xid of each event."""
        if self._events is None:
            return
        uuids = {device.address: device.uuid for device in self._devices or ()}
        until = time.monotonic() + DRAIN_SECONDS
        for _ in range(MAX_EVENTS):
            if time.monotonic() > until:
                return
            try:
                event = pynvml.nvmlEventSetWait(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    calls.errors[error_name(error.value)] += 1
                return
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                yield uuids.get(_address(event.device), ""), event.eventData
            else:
                calls.errors["unknown_event"] += 1


class GpuDevice:
    """One GPU, until NVML is closed."""

    def __init__(self, index: int, driver_major: int, calls: NvmlCalls) -> None:
        self._index = index
        self._driver_major = driver_major
        self._links = Links(driver_major)
        self.activity = ActivitySampler()
        self._handle: Any = None
        self._is_forbidden = False
        self.address = 0
        self.uuid = self._name = self._pci = ""
        try:
            self._handle = calls.required(pynvml.nvmlDeviceGetHandleByIndex, index)
            self.address = _address(self._handle)
            self.uuid = queries.text(calls, pynvml.nvmlDeviceGetUUID, self._handle)
            self._name = queries.text(calls, pynvml.nvmlDeviceGetName, self._handle)
            self._pci = queries.text(calls, lambda handle: pynvml.nvmlDeviceGetPciInfo(handle).busId, self._handle)
        except GpuGone:
            self._handle = None
        except pynvml.NVMLError as error:
            calls.errors[error_name(error.value)] += 1
            self._is_forbidden = error.value == pynvml.NVML_ERROR_NO_PERMISSION

    def register(self, events: Any, calls: NvmlCalls) -> None:
        """Make the driver collect the Xids of this GPU, if the GPU supports that."""
        if events is None or self._handle is None:
            return
        try:
            supported = calls.value(pynvml.nvmlDeviceGetSupportedEventTypes, self._handle) or 0
            xids = supported & pynvml.nvmlEventTypeXidCriticalError
            if xids:
                calls.value(pynvml.nvmlDeviceRegisterEvents, self._handle, xids, events)
        except GpuGone:
            return

    def read(self, calls: NvmlCalls) -> GpuReading | None:
        """Return a reading of all values; None without permission, as in a container that has only some GPUs."""
        if self._is_forbidden:
            return None
        try:
            if self._handle is None:
                raise GpuGone
            return self._read(calls, self._handle)
        except GpuGone:
            self.activity.free()
            return GpuReading(self._index, self.uuid, self._name, self._pci, lost=True)

    def _read(self, calls: NvmlCalls, handle: Any) -> GpuReading:
        self.uuid = self.uuid or queries.text(calls, pynvml.nvmlDeviceGetUUID, handle)  # it can have failed once
        values = queries.values(calls, handle)
        current, supported = queries.reasons(calls, handle)
        partitioned, mig_handles = queries.mig(calls, handle)
        if partitioned is not None:
            values["mig_enabled"] = int(partitioned)
        if partitioned:  # only the MIG instances have activity values
            self.activity.free()
        return GpuReading(
            index=self._index,
            uuid=self.uuid,
            name=self._name,
            pci=self._pci,
            values=values,
            reasons=current,
            supported_reasons=supported,
            reason_nanoseconds=queries.reason_nanoseconds(calls, handle, self._driver_major),
            pids=queries.pids(calls, (handle, *mig_handles)),
            fabric=queries.fabric(calls, handle),
            activity={} if partitioned else self.activity.look(calls, handle),
            links=self._links.look(calls, handle, values.pop("nvlink_links", None)),
        )


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _major(version: str) -> int:
    """Return the major version: 580 for 580.95.05, 0 for a text that is not a version."""
    major = version.partition(".")[0]
    return int(major) if major.isascii() and major.isdigit() else 0


_LIBRARY = NvmlLibrary()
