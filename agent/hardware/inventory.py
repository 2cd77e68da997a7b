"""What a rank stands on: the GPUs and NICs of this node, which GPU a process uses, and which NIC is near it.

Owned by the event loop. Exporters say what there is (``observe_*``, each in place of what the same source said before);
the affinity is made here, and the rank table takes its GPU labels from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

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
"""What lies between two devices, in the words of nvidia-smi topo: one PCIe switch, several, the host bridge, two host
bridges of one NUMA node."""


_PATHS: tuple[Path, ...] = ("PIX", "PXB", "PHB", "NODE")
_STEPS_OF_ONE_SWITCH = 4
"""Up from a device to its port of the switch and the port towards the host, and down again."""


class Affinity(msgspec.Struct, frozen=True):
    """The NIC nearest to a GPU, and what lies between them."""

    gpu: Gpu
    nic: str
    path: Path


class HardwareSource:
    """What one exporter (``source``) may say and ask, until it has ended."""

    def __init__(self, hardware: Hardware, source: str) -> None:
        self._hardware = hardware
        self._source = source
        self._closed = False

    def observe_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Say which GPUs there are; one that fell off the bus stays until the source says otherwise."""
        if not self._closed:
            self._hardware.observe_gpus(self._source, gpus)

    def observe_nics(self, nics: Iterable[Nic]) -> None:
        """Say which NICs there are."""
        if not self._closed:
            self._hardware.observe_nics(self._source, nics)

    def observe_gpu_processes(
        self, users: Mapping[int, Iterable[str]], unseen: Iterable[str] = (), divided: Iterable[str] = ()
    ) -> None:
        """Say which processes (pids as the agent sees them) use which GPUs (UUIDs).

        ``unseen``: GPUs that did not tell, as one that is lost: their users are who they were. ``divided``: GPUs in
        parts, whose users share nothing.
        """
        if not self._closed:
            self._hardware.observe_gpu_processes(self._source, users, unseen, divided)

    def gpu_users(self) -> dict[int, frozenset[str]]:
        """By pid: the GPUs that each process uses and may share with others."""
        return self._hardware.gpu_users()

    def observe_faults(self, faults: FaultsByPci) -> None:
        """Replace the errors that the driver reported lately, by GPU; at most MAX_FAULTS of each."""
        if not self._closed:
            self._hardware.observe_faults(self._source, faults)

    def gpus(self) -> list[Gpu]:
        """All GPUs of the node by index, whoever sees them."""
        return self._hardware.gpus()

    def nics(self) -> list[Nic]:
        """All NICs of the node by name."""
        return self._hardware.nics()

    def close(self) -> None:
        """Take nothing more; what was said stays until the exporter's next run, or until it is withdrawn."""
        self._closed = True


class Hardware:
    """See the module."""

    def __init__(self) -> None:
        self._gpus: dict[str, tuple[Gpu, ...]] = {}
        self._nics: dict[str, tuple[Nic, ...]] = {}
        self._users: dict[str, dict[int, tuple[str, ...]]] = {}
        self._unseen: dict[str, frozenset[str]] = {}
        self._divided: dict[str, frozenset[str]] = {}
        self._faults: dict[str, dict[str, list[FaultSeen]]] = {}
        self._affinities: tuple[Affinity, ...] = ()

    def of(self, source: str) -> HardwareSource:
        """What the exporter of this name writes."""
        return HardwareSource(self, source)

    def withdraw(self, kept: Collection[str]) -> None:
        """Drop what was said by sources that are none of ``kept``: they were disabled, or did not start again."""
        for table in (self._gpus, self._nics, self._users, self._unseen, self._divided, self._faults):
            for source in table.keys() - set(kept):
                del table[source]
        self._affinities = nearest_nics(self.gpus(), self.nics())

    def observe_gpus(self, source: str, gpus: Iterable[Gpu]) -> None:
        """Take the GPUs that ``source`` sees; one that fell off the bus stays until the source is told otherwise."""
        self._gpus[source] = tuple(sorted(gpus))[:MAX_GPUS]
        self._affinities = nearest_nics(self.gpus(), self.nics())

    def observe_nics(self, source: str, nics: Iterable[Nic]) -> None:
        """Take the NICs that ``source`` sees."""
        self._nics[source] = tuple(sorted(nics))[:MAX_NICS]
        self._affinities = nearest_nics(self.gpus(), self.nics())

    def observe_gpu_processes(
        self,
        source: str,
        users: Mapping[int, Iterable[str]],
        unseen: Iterable[str] = (),
        divided: Iterable[str] = (),
    ) -> None:
        """Take which processes (pids as the agent sees them) use which GPUs (UUIDs).

        ``unseen``: GPUs that did not tell, as one that is lost: their users are who they were. ``divided``: GPUs in
        parts, whose users share nothing.
        """
        kept = list(users.items())[:MAX_GPU_PROCESSES]
        self._users[source] = {pid: tuple(sorted(set(uuids))) for pid, uuids in kept}
        self._unseen[source] = frozenset(unseen)
        self._divided[source] = frozenset(divided)

    def observe_faults(self, source: str, faults: FaultsByPci) -> None:
        """Take which errors of GPUs ``source`` knows of."""
        self._faults[source] = {pci: list(seen)[:MAX_FAULTS] for pci, seen in list(faults.items())[:MAX_GPUS]}

    def faults(self) -> tuple[GpuFault, ...]:
        """The last errors of all GPUs, by address."""
        names = {gpu.pci: (str(gpu.index), gpu.uuid) for gpu in self.gpus()}
        return tuple(
            GpuFault(*names.get(pci, ("", "")), pci, each)
            for pci, seen in sorted(merged(self._faults.values()).items())
            for each in seen
        )

    def gpus(self) -> list[Gpu]:
        """All GPUs by index."""
        return sorted(gpu for found in self._gpus.values() for gpu in found)

    def nics(self) -> list[Nic]:
        """All NICs by name."""
        return sorted(nic for found in self._nics.values() for nic in found)

    def affinities(self) -> tuple[Affinity, ...]:
        """The NIC of each GPU that has one, in the order of the GPUs."""
        return self._affinities

    def gpus_of(self, pid: int) -> list[Gpu]:
        """The GPUs that a process uses, by index."""
        used = {uuid for users in self._users.values() for uuid in users.get(pid, ())}
        return [gpu for gpu in self.gpus() if gpu.uuid in used]

    def gpu_users(self) -> dict[int, frozenset[str]]:
        """By pid: the GPUs that each process uses and may share with others."""
        found: dict[int, frozenset[str]] = {}
        for source, users in self._users.items():
            for pid, uuids in users.items():
                found[pid] = found.get(pid, frozenset()) | (frozenset(uuids) - self._divided.get(source, frozenset()))
        return {pid: uuids for pid, uuids in found.items() if uuids}

    def is_unseen(self, uuid: str) -> bool:
        """True for a GPU of which it is not known who uses it."""
        return any(uuid in uuids for uuids in self._unseen.values())

    def nic_of(self, gpu: Gpu) -> str:
        """The NIC near a GPU; empty where none is known."""
        return next((each.nic for each in self._affinities if each.gpu.uuid == gpu.uuid), "")


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
