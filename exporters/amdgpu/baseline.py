"""The node's GPUs since the boot, and the checks of each. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from agent.sdk.hardware import CheckState, DriverReport, TimedFault, fault_table, gpu_faults
from exporters.amdgpu.tree import RawGpu

UNCORRECTABLE = "uncorrectable"  # The code of an error for which the driver has only a count, no log line


class Known(msgspec.Struct, frozen=True):
    """A GPU that was present since the boot. ``links``: the XGMI links that were up before."""

    uuid: str
    name: str
    links: frozenset[int] = frozenset()


class View(msgspec.Struct, frozen=True):
    """A GPU as rendered. ``index``: its number in the order of the PCI addresses. ``raw``: None if it is lost."""

    index: int
    pci: str
    known: Known
    raw: RawGpu | None

    @property
    def links(self) -> dict[int, bool]:
        """Return whether each link that was up before is up now. Boards do not connect all links."""
        links = self.raw.table.links if self.raw is not None and self.raw.table is not None else {}
        return {number: up for number, up in links.items() if number in self.known.links}


def learn(known: dict[str, Known], gpus: Iterable[RawGpu]) -> None:
    """Add the present GPUs to ``known``, by PCI address. A GPU that never had a unique id has its address as UUID."""
    for gpu in gpus:
        if not gpu.pci:
            continue
        before = known.get(gpu.pci)
        uuid = gpu.unique_id or (before.uuid if before is not None else gpu.pci)  # not readable during a reset
        links = {number for number, up in gpu.table.links.items() if up} if gpu.table is not None else set()
        if before is not None and before.uuid == uuid:
            links |= before.links
        known[gpu.pci] = Known(uuid, gpu.name, frozenset(links))


def views(known: dict[str, Known], gpus: Sequence[RawGpu]) -> tuple[View, ...]:
    """Return a view of each known GPU, present or lost, in the order of the PCI addresses."""
    present = {gpu.pci: gpu for gpu in gpus}
    return tuple(View(index, pci, known[pci], present.get(pci)) for index, pci in enumerate(sorted(known)))


def verdicts(view: View) -> dict[str, CheckState]:
    """Return the state of each check for which the GPU has values."""
    if view.raw is None:
        return {"gpu_lost": CheckState.FAILED}
    raw = view.raw
    states = {"gpu_lost": CheckState.OK}
    if raw.errors:
        memory = {block: counts for block, counts in raw.errors.items() if block != "xgmi_wafl"}
        states["gpu_ecc_uncorrectable"] = CheckState.of(not any(counts.get("ue") for counts in memory.values()))
    if "xgmi_wafl" in raw.errors:
        states["xgmi_errors"] = CheckState.of(not raw.errors["xgmi_wafl"].get("ue"))
    if view.links:
        states["xgmi_down"] = CheckState.of(all(view.links.values()))
    width, max_width = raw.values.get("pcie_width"), raw.values.get("pcie_max_width")
    if width is not None and max_width is not None:
        states["pcie_degraded"] = CheckState.of(width >= max_width)
    temperature, limit = raw.sensors.get("temp/junction/input"), raw.sensors.get("temp/junction/crit")
    if temperature is not None and limit:
        states["gpu_hot"] = CheckState.of(temperature < limit)
    return states


class RasErrors:
    """Uncorrectable errors by block. ``faults``: by PCI address, a fault for each block whose count rose."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self.faults: dict[str, list[TimedFault]] = {}

    def look(self, gpus: Iterable[RawGpu], now_seconds: float) -> None:
        """Add a poll at ``now_seconds`` (epoch). Errors in the first poll are no fault: their time is unknown."""
        for gpu in gpus:
            for block, counts in gpu.errors.items():
                count = counts.get("ue", 0)
                if count > self._counts.get((gpu.pci, block), count):
                    fault = gpu_faults.judge("amd", DriverReport(UNCORRECTABLE, unit=block)).fault
                    self.faults[gpu.pci] = fault_table.add(self.faults.get(gpu.pci, ()), fault, now_seconds)
                self._counts[gpu.pci, block] = count
        self.faults = {pci: fault_table.recent(faults, now_seconds) for pci, faults in self.faults.items()}
