"""The request to the helper process and its answer: the driver's own numbers, not yet checked.

The agent and the helper both import this module, so it must import little.
"""

from typing import Annotated

import msgspec

MAX_GPUS = 64  # Limit of GPUs per node, as in NVML's own tools
MAX_EVENTS = 100_000  # Limit of events per poll. The driver keeps the rest for the next poll.
MAX_COUNT = 1 << 31  # Limit of equal events per poll
MAX_PROCESSES = 1024  # Limit of processes per GPU
MAX_MIG_INSTANCES = 16  # Limit of MIG instances per GPU; hardware has at most seven
MAX_TEXT = 96  # Limit of characters of a name or a version


class LookRequest(msgspec.Struct, frozen=True):
    """``library``: the path of libnvidia-ml.so.1, empty if the loader finds it.

    ``reopen``: initialise NVML again; a lost GPU can appear again only after that.
    """

    library: str = ""
    reopen: bool = False


class Link(msgspec.Struct, frozen=True):
    """An NVLink by its number: whether it is up (None: unknown), and its errors by kind."""

    number: int
    up: bool | None
    errors: dict[str, int] = {}


class Fabric(msgspec.Struct, frozen=True):
    """The GPU's state in its NVLink fabric, with the numbers of nvml.h.

    ``health``: the mask of faults, None if the driver has none. ``cluster``: the domain's UUID, or empty.
    """

    state: int
    status: int
    clique: int
    cluster: str
    health: int | None = None


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU. ``lost``: the driver can no longer reach the GPU; then only the GPU's identity is set.

    ``values``: the driver's numbers by the names of exporters/nvml/fields.py, in the driver's units; an unknown number
    is absent. ``reasons``: the bits of the active clock event reasons. ``reason_nanoseconds``: how long each reason was
    active since the driver was loaded, if the driver counts it. ``activity``: means since the previous poll, with the
    same names and units. ``pids``: processes that compute on the GPU or on one of its MIG instances.
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
    """An Xid of a GPU (UUID, empty if unknown) and how often it occurred since the last poll."""

    uuid: str
    xid: int
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] = 1


class LookAnswer(msgspec.Struct, frozen=True):
    """One poll. ``error``: NVML's name, in lower case, of the error that stopped the poll; empty without an error.

    With an error, only ``events`` and ``errors`` have data. ``errors``: values that could not be read, by reason.
    ``driver``: the driver's version. ``cuda``: the latest CUDA version that the driver runs. Both are empty if unknown.
    """

    error: str = ""
    gpus: tuple[GpuReading, ...] = ()
    events: tuple[XidEvent, ...] = ()
    errors: dict[str, int] = {}
    driver: str = ""
    cuda: str = ""
