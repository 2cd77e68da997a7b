"""What the helper process is asked, and what it answers: the driver's own numbers, not yet judged.

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
"""Of one GPU; seven are what hardware can do."""
MAX_TEXT = 96
"""Characters of a name or a version."""


class LookRequest(msgspec.Struct, frozen=True):
    """``library``: where libnvidia-ml.so.1 is, empty for where the loader finds it.

    ``pcie_throughput``: ask for it too, which takes the driver 20 ms for each direction and GPU. ``reopen``: initialise
    NVML anew, which alone shows whether a GPU that was lost has come back.
    """

    library: str = ""
    pcie_throughput: bool = False
    reopen: bool = False


class Link(msgspec.Struct, frozen=True):
    """An NVLink by its number: whether it is up, None where that is not known, and its errors by kind."""

    number: int
    up: bool | None
    errors: dict[str, int] = {}


class MigInstance(msgspec.Struct, frozen=True):
    """A MIG device: its UUID, and the ids of its GPU instance and compute instance (-1 where they are not known)."""

    uuid: str
    gpu_instance: int = -1
    compute_instance: int = -1


class Fabric(msgspec.Struct, frozen=True):
    """How the GPU joined its NVLink fabric: numbers as in nvml.h.

    ``health``: the mask of what is wrong, None where the driver has none. ``cluster``: the domain's UUID, or empty.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health: int | None = None


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU. ``lost``: the driver has no more access to it; then only what was known before is set.

    ``values``: what the driver says, by our names for it (exporters/nvml/fields.py), in the driver's units; what it
    does not say is absent. ``reasons``: the bits of what lowers the clocks; ``reason_nanoseconds``: since the driver
    was loaded, by reason, as far as it counts. ``activity``: means since the look before, by our names and in the
    driver's units likewise; of GPUs that tell, from their second look on. ``pids``: processes that compute on it or on
    a MIG instance of it.
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
    mig: tuple[MigInstance, ...] = ()
    fabric: Fabric | None = None
    links: tuple[Link, ...] = ()


class DriverEvent(msgspec.Struct, frozen=True):
    """What a GPU (by UUID, empty if unknown) told of itself since the last look; ``data``: the Xid, for an Xid.

    ``count``: how often.
    """

    uuid: str
    kind: str
    data: int
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] = 1


class LookAnswer(msgspec.Struct, frozen=True):
    """One look. ``error``: why there is no more than ``events``, by NVML's name for it in lower case; empty when all
    went well. ``errors``: values that should have been there and were not, by reason.
    """

    error: str = ""
    driver: str = ""
    cuda: int = 0
    gpus: tuple[GpuReading, ...] = ()
    events: tuple[DriverEvent, ...] = ()
    errors: dict[str, int] = {}
