"""What the hardware at a PCI address is called, and faults told of it before it had that name."""

from __future__ import annotations

from typing import Literal, TypeAlias

from agent.sdk.hardware import Checks, HardwareSource, Subject

DeviceKind: TypeAlias = Literal["gpu", "nic"]


class Names:
    """The names by address, as the hardware's own exporters found them last."""

    def __init__(self) -> None:
        self._known: dict[DeviceKind, dict[str, str]] = {"gpu": {}, "nic": {}}

    def learn(self, hardware: HardwareSource, checks: Checks) -> None:
        """Take the names of now; what stands in the ledger under an address that has got another one goes there."""
        found: dict[DeviceKind, dict[str, str]] = {
            "gpu": {gpu.pci: gpu.uuid for gpu in hardware.gpus() if _is_name(gpu.uuid)},
            "nic": {nic.pci: nic.device for nic in hardware.nics() if nic.device},
        }
        for kind, names in found.items():
            if names != self._known[kind]:
                self._known[kind] = names
                checks.rename(kind, names)

    def subject(self, kind: DeviceKind, pci: str) -> Subject:
        """The piece of hardware at the address, by its address where it has no name yet."""
        return Subject(kind, self._known[kind].get(pci, pci))


def _is_name(text: str) -> bool:
    """A mere number is a driver's index, which another piece of hardware may have tomorrow."""
    return bool(text) and not text.isdigit()
