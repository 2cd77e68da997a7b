"""The request to the helper process and its answer: the driver's own numbers, not yet judged.

Both sides import this; it must stay light.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_GPUS = 64
"""Of one node, as much as NVML's own tools show."""
MAX_EVENTS = 100_000
"""Taken from the driver at one look; the rest waits there for the next one."""
MAX_COUNT = 1 << 31
"""Of alike events at one look."""
MAX_PROCESSES = 1024
"""Of one GPU."""
MAX_MIG_INSTANCES = 16
"""Of one GPU; hardware has seven."""
MAX_TEXT = 96
"""Characters of a name or a version."""


class LookRequest(msgspec.Struct, frozen=True):
    """``library``: the path of libnvidia-ml.so.1, empty where the loader finds it.

    ``reopen``: initialise NVML anew; a GPU that was lost shows again only then.
    """

    library: str = ""
    reopen: bool = False


class Link(msgspec.Struct, frozen=True):
    """An NVLink by its number: whether it is up (None: unknown), and its errors by kind."""

    number: int
    up: bool | None
    errors: dict[str, int] = {}


class Fabric(msgspec.Struct, frozen=True):
    """The NVLink fabric that the GPU joins: numbers as in nvml.h.

    ``health``: the mask of faults, None where the driver has none. ``cluster``: the domain's UUID, or empty.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health: int | None = None


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU. ``lost``: the driver has no more access to it; then only its identity is set.

    ``values``: the driver's numbers by the names of exporters/nvml/fields.py, in the driver's units; an unknown one is
    absent. ``reasons``: the bits of the active clock event reasons; ``reason_nanoseconds``: since the driver was
    loaded, by reason, where the driver counts. ``activity``: means since the look before, named and scaled likewise.
    ``pids``: processes that compute on the GPU or on a MIG instance of it.
    """

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    lost: bool = False
    values: dict[str, int] = {}
    reasons: int | None = None
    supported_reasons: int | None = None
    reason_nanoseconds: dict[str, int] = {}
    activity: dict[str, float] = {}
    pids: tuple[int, ...] | None = None
    fabric: Fabric | None = None
    links: tuple[Link, ...] = ()


class XidEvent(msgspec.Struct, frozen=True):
    """An Xid of a GPU (by UUID, empty if unknown) since the last look, and how often it came."""

    uuid: str
    xid: int
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] = 1


class LookAnswer(msgspec.Struct, frozen=True):
    """One look. ``error``: NVML's name, in lower case, of the error that allowed ``events`` alone; empty without one.

    ``errors``: values that the driver failed to give, by reason. ``driver``: its version, ``cuda``: the latest that it
    runs; empty if unknown.
    """

    error: str = ""
    gpus: tuple[GpuReading, ...] = ()
    events: tuple[XidEvent, ...] = ()
    errors: dict[str, int] = {}
    driver: str = ""
    cuda: str = ""
