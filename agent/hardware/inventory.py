"""The GPUs and NICs of this node, the processes on each GPU, and the NIC near each GPU.

The event loop owns this state. Exporters write their observations. This module computes the affinity of GPUs and NICs.
The rank table reads its GPU labels from this state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from agent.core.leased import Leased
from agent.hardware.fault_table import MAX_FAULTS, FaultsByPci, GpuFault, TimedFault, merged

MAX_GPUS = 256  # GPUs of one node, with MIG instances
MAX_NICS = 256
MAX_GPU_PROCESSES = 4096


class Gpu(msgspec.Struct, frozen=True, order=True):
    """A GPU. ``index``: the driver's number. ``uuid``: as dcgm-exporter writes it (GPU-...). ``pci``: as dddd:bb:dd.f.

    ``pci_path``: the addresses from the root of the PCI tree to the GPU: the bridges above the GPU, then the GPU.
    ``numa``: its NUMA node, -1 if unknown.
    """

    index: int
    uuid: str
    pci: str
    pci_path: tuple[str, ...] = ()
    numa: int = -1


class Nic(msgspec.Struct, frozen=True, order=True):
    """An RDMA device: its name, and its position in the PCI tree (see ``Gpu``)."""

    device: str
    pci: str
    pci_path: tuple[str, ...] = ()
    numa: int = -1


class _Observed(msgspec.Struct, frozen=True):
    """The observations of one source: see ``HardwareSource``."""

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    users: dict[int, tuple[str, ...]] = {}
    unseen: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    faults: dict[str, list[TimedFault]] = {}


class Hardware:
    """The observations of all sources about this node's GPUs and NICs."""

    def __init__(self) -> None:
        self._by_source: dict[str, _Observed] = {}
        self._nearest: Mapping[str, str] = {}

    def of(self, source: str) -> HardwareSource:
        """Return the writer for the exporter named ``source``."""
        return HardwareSource(self, source)

    def put(self, source: str, **observed: Any) -> None:
        """Replace these fields of the observations of ``source``."""
        self._by_source[source] = msgspec.structs.replace(self._by_source.get(source, _Observed()), **observed)
        if observed.keys() & {"gpus", "nics"}:
            self._nearest = nearest_nics(self.gpus(), self.nics())

    def withdraw(self, sources: Collection[str]) -> None:
        """Drop the observations of sources outside ``sources``, which are disabled or did not start again."""
        self._by_source = {source: observed for source, observed in self._by_source.items() if source in sources}
        self._nearest = nearest_nics(self.gpus(), self.nics())

    def faults(self) -> tuple[GpuFault, ...]:
        """Return the last errors of all GPUs, in the order of their PCI addresses."""
        names = {gpu.pci: (str(gpu.index), gpu.uuid) for gpu in self.gpus()}
        return tuple(
            GpuFault(*names.get(pci, ("", "")), pci, fault)
            for pci, faults in sorted(merged(observed.faults for observed in self._by_source.values()).items())
            for fault in faults
        )

    def gpus(self) -> list[Gpu]:
        """Return all GPUs, in the order of their indexes."""
        return sorted(gpu for observed in self._by_source.values() for gpu in observed.gpus)

    def nics(self) -> list[Nic]:
        """Return all NICs, in the order of their names."""
        return sorted(nic for observed in self._by_source.values() for nic in observed.nics)

    def gpus_of(self, pid: int) -> list[Gpu]:
        """Return the GPUs that a process uses, in the order of their indexes."""
        used = {uuid for observed in self._by_source.values() for uuid in observed.users.get(pid, ())}
        return [gpu for gpu in self.gpus() if gpu.uuid in used]

    def gpu_users(self) -> dict[int, frozenset[str]]:
        """Return, by pid, the UUIDs of the GPUs that each process uses and can share with other processes."""
        users: dict[int, frozenset[str]] = {}
        for observed in self._by_source.values():
            for pid, uuids in observed.users.items():
                users[pid] = users.get(pid, frozenset()) | (frozenset(uuids) - observed.divided)
        return {pid: uuids for pid, uuids in users.items() if uuids}

    def is_unseen(self, uuid: str) -> bool:
        """Return True for a GPU whose processes are unknown."""
        return any(uuid in observed.unseen for observed in self._by_source.values())

    def nic_of(self, gpu: Gpu) -> str:
        """Return the name of the NIC near a GPU; empty if none is known."""
        return self._nearest.get(gpu.uuid, "")


class HardwareSource(Leased[Hardware]):
    """Writes and reads for one exporter (``source``). Each write replaces the previous write of the same kind.

    After ``close`` the observations stay until the exporter's next run, or until ``Hardware.withdraw``.
    """

    def __init__(self, hardware: Hardware, source: str) -> None:
        super().__init__(hardware, source)
        self.gpus, self.nics, self.gpu_users = hardware.gpus, hardware.nics, hardware.gpu_users

    def observe_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Write the GPUs. A GPU that fell off the bus stays until the source writes GPUs without it."""
        self._lent.put(self._source, gpus=tuple(sorted(gpus))[:MAX_GPUS])

    def observe_nics(self, nics: Iterable[Nic]) -> None:
        """Write the NICs."""
        self._lent.put(self._source, nics=tuple(sorted(nics))[:MAX_NICS])

    def observe_gpu_processes(
        self, users: Mapping[int, Iterable[str]], unseen: Iterable[str] = (), divided: Iterable[str] = ()
    ) -> None:
        """Write the UUIDs of the GPUs that each process uses. The pids are of the agent's pid namespace.

        ``unseen``: GPUs that did not answer, such as a lost GPU: their processes are unknown. ``divided``: GPUs in
        parts (MIG), whose processes share no part.
        """
        uuids_by_pid = {pid: tuple(sorted(set(uuids))) for pid, uuids in list(users.items())[:MAX_GPU_PROCESSES]}
        self._lent.put(self._source, users=uuids_by_pid, unseen=frozenset(unseen), divided=frozenset(divided))

    def observe_faults(self, faults: FaultsByPci) -> None:
        """Write the recent errors of each GPU, at most MAX_FAULTS per GPU."""
        self._lent.put(
            self._source, faults={pci: list(recent)[:MAX_FAULTS] for pci, recent in list(faults.items())[:MAX_GPUS]}
        )


def nearest_nics(gpus: Iterable[Gpu], nics: Iterable[Nic]) -> dict[str, str]:
    """Return the nearest NIC of each GPU by UUID.

    A NIC that no other GPU has yet is preferred. A NIC that has no PCI bridge in common with the GPU must be on the
    GPU's NUMA node.
    """
    all_nics = list(nics)
    pairs = sorted(
        (*near, gpu, nic.device) for gpu in gpus for nic in all_nics if (near := _distance(gpu, nic)) is not None
    )
    nearest: dict[str, str] = {}
    assigned: set[str] = set()
    for _, _, gpu, device in pairs:
        if gpu.uuid not in nearest and device not in assigned:
            nearest[gpu.uuid] = device
            assigned.add(device)
    for _, _, gpu, device in pairs:
        nearest.setdefault(gpu.uuid, device)
    return nearest


def _distance(gpu: Gpu, nic: Nic) -> tuple[int, int] | None:
    """Return the kind of connection, and the steps from the GPU to the NIC in the PCI tree; None if far apart.

    Kind 0: a PCIe switch, 1: the host bridge, 2: two host bridges of one NUMA node.
    """
    shared = 0
    for gpu_bridge, nic_bridge in zip(gpu.pci_path, nic.pci_path, strict=False):
        if gpu_bridge != nic_bridge:
            break
        shared += 1
    steps = len(gpu.pci_path) + len(nic.pci_path) - 2 * shared
    if shared:
        return (0 if shared > 1 else 1), steps
    return (2, steps) if gpu.numa == nic.numa >= 0 else None
