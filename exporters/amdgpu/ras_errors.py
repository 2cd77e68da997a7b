"""Uncorrectable errors by block, as the driver counts them, told as errors of their GPU when they rise. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.hardware import FaultSeen, Told, fault_table, gpu_faults
from exporters.amdgpu.tree import RawGpu

UNCORRECTABLE = "uncorrectable"


class RasErrors:
    """``faults``: by PCI address, what rose since the first look."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self.faults: dict[str, list[FaultSeen]] = {}

    def look(self, gpus: Iterable[RawGpu], now_seconds: float) -> None:
        """Take a look at this time (epoch seconds); what a first one finds may be of any time, and is not told."""
        for gpu in gpus:
            for block, counts in gpu.errors.items():
                count = counts.get("ue", 0)
                if count > self._counts.get((gpu.pci, block), count):
                    fault = gpu_faults.judge("amd", Told(UNCORRECTABLE, unit=block)).fault
                    self.faults[gpu.pci] = fault_table.add(self.faults.get(gpu.pci, ()), fault, now_seconds)
                self._counts[gpu.pci, block] = count
        self.faults = {pci: fault_table.recent(seen, now_seconds) for pci, seen in self.faults.items()}
