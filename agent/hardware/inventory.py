"""The GPUs and NICs of this node, which GPU a process uses, and which NIC is near it.

Owned by the event loop. Exporters write what they observe; the affinity is computed here, and the rank table takes its
GPU labels from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from agent.hardware.fault_table import MAX_FAULTS, FaultsByPci, FaultSeen, GpuFault, merged

MAX_GPUS = 256
"""Of one node, MIG instances among them."""
MAX_NICS = 256
MAX_GPU_PROCESSES = 4096


class Gpu(msgspec.Struct, frozen=True, order=True):
    """``index`` as the driver counts, ``uuid`` as dcgm-exporter writes it (GPU-...), ``pci`` as dddd:bb:dd.f.

    ``pci_path``: the addresses of the bridges above it and its own, from the root of the tree down; ``numa``: its
    NUMA node, -1 where that is not known.
    """

    index: int
    uuid: str
    pci: str
    pci_path: tuple[str, ...] = ()
    numa: int = -1


class Nic(msgspec.Struct, frozen=True, order=True):
    """An RDMA device by its name, and its place in the tree as of a GPU."""

    device: str
    pci: str
    pci_path: tuple[str, ...] = ()
    numa: int = -1


Path = Literal["PIX", "PXB", "PHB", "NODE"]
"""The way between two devices, in the words of nvidia-smi topo: one PCIe switch, several, the host bridge, two host
bridges of one NUMA node."""
_PATHS: tuple[Path, ...] = ("PIX", "PXB", "PHB", "NODE")
_STEPS_OF_ONE_SWITCH = 4
"""Up from a device to its port of the switch and the port towards the host, and down again."""


class Affinity(msgspec.Struct, frozen=True):
    """The NIC nearest to a GPU, and what lies between them."""

    gpu: Gpu
    nic: str
    path: Path


class _Observed(msgspec.Struct, frozen=True):
    """What one source observed: see ``HardwareSource``."""

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    users: dict[int, tuple[str, ...]] = {}
    unseen: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    faults: dict[str, list[FaultSeen]] = {}


class Hardware:
    """See the module."""

    def __init__(self) -> None:
        self._of: dict[str, _Observed] = {}
        self._affinities: tuple[Affinity, ...] = ()

    def of(self, source: str) -> HardwareSource:
        """The writer of the exporter of this name."""
        return HardwareSource(self, source)

    def put(self, source: str, **observed: Any) -> None:
        """Replace these fields of what ``source`` observed."""
        self._of[source] = msgspec.structs.replace(self._of.get(source, _Observed()), **observed)
        if observed.keys() & {"gpus", "nics"}:
            self._affinities = nearest_nics(self.gpus(), self.nics())

    def withdraw(self, kept: Collection[str]) -> None:
        """Drop the observations of sources outside ``kept``: they were disabled, or did not start again."""
        self._of = {source: observed for source, observed in self._of.items() if source in kept}
        self._affinities = nearest_nics(self.gpus(), self.nics())

    def faults(self) -> tuple[GpuFault, ...]:
        """The last errors of all GPUs, by address."""
        names = {gpu.pci: (str(gpu.index), gpu.uuid) for gpu in self.gpus()}
        return tuple(
            GpuFault(*names.get(pci, ("", "")), pci, each)
            for pci, seen in sorted(merged(observed.faults for observed in self._of.values()).items())
            for each in seen
        )

    def gpus(self) -> list[Gpu]:
        """All GPUs by index."""
        return sorted(gpu for observed in self._of.values() for gpu in observed.gpus)

    def nics(self) -> list[Nic]:
        """All NICs by name."""
        return sorted(nic for observed in self._of.values() for nic in observed.nics)

    def gpus_of(self, pid: int) -> list[Gpu]:
        """The GPUs that a process uses, by index."""
        used = {uuid for observed in self._of.values() for uuid in observed.users.get(pid, ())}
        return [gpu for gpu in self.gpus() if gpu.uuid in used]

    def gpu_users(self) -> dict[int, frozenset[str]]:
        """By pid: the GPUs that each process uses and may share with others."""
        found: dict[int, frozenset[str]] = {}
        for observed in self._of.values():
            for pid, uuids in observed.users.items():
                found[pid] = found.get(pid, frozenset()) | (frozenset(uuids) - observed.divided)
        return {pid: uuids for pid, uuids in found.items() if uuids}

    def is_unseen(self, uuid: str) -> bool:
        """True for a GPU of which it is not known who uses it."""
        return any(uuid in observed.unseen for observed in self._of.values())

    def nic_of(self, gpu: Gpu) -> str:
        """The NIC near a GPU; empty where none is known."""
        return next((each.nic for each in self._affinities if each.gpu.uuid == gpu.uuid), "")


class HardwareSource:
    """The writer and reader of one exporter (``source``), until it has ended. Each write replaces the one before."""

    def __init__(self, hardware: Hardware, source: str) -> None:
        self._hardware = hardware
        self._source = source
        self._closed = False
        self.gpus, self.nics, self.gpu_users = hardware.gpus, hardware.nics, hardware.gpu_users

    def observe_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Write which GPUs there are; one that fell off the bus stays until the source says otherwise."""
        self._put(gpus=tuple(sorted(gpus))[:MAX_GPUS])

    def observe_nics(self, nics: Iterable[Nic]) -> None:
        """Write which NICs there are."""
        self._put(nics=tuple(sorted(nics))[:MAX_NICS])

    def observe_gpu_processes(
        self, users: Mapping[int, Iterable[str]], unseen: Iterable[str] = (), divided: Iterable[str] = ()
    ) -> None:
        """Write which processes (pids as the agent sees them) use which GPUs (UUIDs).

        ``unseen``: GPUs that did not answer, as a lost one; they keep their users. ``divided``: GPUs in parts, whose
        users share nothing.
        """
        kept = {pid: tuple(sorted(set(uuids))) for pid, uuids in list(users.items())[:MAX_GPU_PROCESSES]}
        self._put(users=kept, unseen=frozenset(unseen), divided=frozenset(divided))

    def observe_faults(self, faults: FaultsByPci) -> None:
        """Write the recent errors of each GPU, MAX_FAULTS of each at most."""
        self._put(faults={pci: list(seen)[:MAX_FAULTS] for pci, seen in list(faults.items())[:MAX_GPUS]})

    def close(self) -> None:
        """Ignore later writes; the last ones stay until the exporter's next run, or until they are withdrawn."""
        self._closed = True

    def _put(self, **observed: Any) -> None:
        if not self._closed:
            self._hardware.put(self._source, **observed)


def nearest_nics(gpus: Iterable[Gpu], nics: Iterable[Nic]) -> tuple[Affinity, ...]:
    """Give each GPU the nearest NIC that no other has yet, then the nearest at all; none across NUMA nodes."""
    found = list(nics)
    pairs = sorted(
        (*near, gpu, nic.device) for gpu in gpus for nic in found if (near := _distance(gpu, nic)) is not None
    )
    chosen: dict[Gpu, Affinity] = {}
    taken: set[str] = set()
    for level, _, gpu, device in pairs:
        if gpu not in chosen and device not in taken:
            chosen[gpu] = Affinity(gpu, device, _PATHS[level])
            taken.add(device)
    for level, _, gpu, device in pairs:
        chosen.setdefault(gpu, Affinity(gpu, device, _PATHS[level]))
    return tuple(chosen[gpu] for gpu in sorted(chosen))


def _distance(gpu: Gpu, nic: Nic) -> tuple[int, int] | None:
    """The kind of way between them (an index of _PATHS), then steps from the one up to the common bridge and down."""
    shared = 0
    for left, right in zip(gpu.pci_path, nic.pci_path, strict=False):
        if left != right:
            break
        shared += 1
    steps = len(gpu.pci_path) + len(nic.pci_path) - 2 * shared
    if shared > 1:
        return (0 if steps <= _STEPS_OF_ONE_SWITCH else 1), steps
    if shared == 1:
        return 2, steps
    return (3, steps) if gpu.numa == nic.numa >= 0 else None
