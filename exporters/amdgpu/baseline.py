"""Which GPUs the node has, learnt since the boot, and what is wrong with each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agent.sdk.hardware import CheckState
from exporters.amdgpu.tree import RawGpu


class Known(msgspec.Struct, frozen=True):
    """A GPU that was there since the boot, by its PCI address. ``links``: XGMI links that were up at some time."""

    uuid: str
    name: str
    links: frozenset[int] = frozenset()


class View(msgspec.Struct, frozen=True):
    """A GPU as it is shown: its number in the order of the addresses; ``raw`` None: it is lost."""

    index: int
    pci: str
    known: Known
    raw: RawGpu | None

    @property
    def links(self) -> dict[int, bool]:
        """Whether each XGMI link is up, of those that were so at some time: boards do not connect all of them."""
        told = self.raw.table.links if self.raw is not None and self.raw.table is not None else {}
        return {number: up for number, up in told.items() if number in self.known.links}


def learn(known: dict[str, Known], gpus: Iterable[RawGpu]) -> None:
    """Add what is there. Where the driver tells no unique id the address stands for it."""
    for gpu in gpus:
        if not gpu.pci:
            continue
        uuid, before = gpu.unique_id or gpu.pci, known.get(gpu.pci)
        links = {number for number, up in gpu.table.links.items() if up} if gpu.table is not None else set()
        if before is not None and before.uuid == uuid:
            links |= before.links
        known[gpu.pci] = Known(uuid, gpu.name, frozenset(links))


def views(known: dict[str, Known], gpus: Sequence[RawGpu]) -> tuple[View, ...]:
    """All GPUs that there are or were."""
    found = {gpu.pci: gpu for gpu in gpus}
    return tuple(View(index, pci, known[pci], found.get(pci)) for index, pci in enumerate(sorted(known)))


def verdicts(view: View) -> dict[str, CheckState]:
    """Each check that can be made of a GPU, and what it found."""
    if view.raw is None:
        return {"gpu_lost": CheckState.FAILED}
    raw = view.raw
    found = {"gpu_lost": CheckState.OK}
    if raw.errors:
        memory = {block: counts for block, counts in raw.errors.items() if block != "xgmi_wafl"}
        found["gpu_ecc_uncorrectable"] = CheckState.of(not any(counts.get("ue") for counts in memory.values()))
    if "xgmi_wafl" in raw.errors:
        found["xgmi_errors"] = CheckState.of(not raw.errors["xgmi_wafl"].get("ue"))
    if view.links:
        found["xgmi_down"] = CheckState.of(all(view.links.values()))
    width, most = raw.values.get("pcie_width"), raw.values.get("pcie_max_width")
    if width is not None and most is not None:
        found["pcie_degraded"] = CheckState.of(width >= most)
    heat, limit = raw.sensors.get("temp/junction/input"), raw.sensors.get("temp/junction/crit")
    if heat is not None and limit:
        found["gpu_hot"] = CheckState.of(heat < limit)
    return found
