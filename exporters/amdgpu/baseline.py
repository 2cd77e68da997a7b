"""Which GPUs the node has, learnt since the boot, and what is wrong with each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agent.api import CheckState
from exporters.amdgpu.tree import RawGpu


class Known(msgspec.Struct, frozen=True):
    """A GPU that was there since the boot, by its PCI address."""

    uuid: str
    name: str


class View(msgspec.Struct, frozen=True):
    """A GPU as it is shown: its number in the order of the addresses; ``raw`` None: it is lost."""

    index: int
    pci: str
    known: Known
    raw: RawGpu | None


def learn(known: dict[str, Known], gpus: Iterable[RawGpu]) -> None:
    """Add what is there. Where the driver tells no unique id the address stands for it."""
    for gpu in gpus:
        if gpu.pci:
            known[gpu.pci] = Known(gpu.unique_id or gpu.pci, gpu.name)


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
    width, most = raw.values.get("pcie_width"), raw.values.get("pcie_max_width")
    if width is not None and most is not None:
        found["pcie_degraded"] = CheckState.of(width >= most)
    heat, limit = raw.sensors.get("temp/junction/input"), raw.sensors.get("temp/junction/crit")
    if heat is not None and limit:
        found["gpu_hot"] = CheckState.of(heat < limit)
    return found
