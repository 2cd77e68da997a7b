"""The expected state of the node's RDMA devices: present, up, and with their best rate since the boot. Pure.

Only devices of physical PCI functions are expected; the function's address identifies a device. A renamed device stays
the same device. Software may remove the devices that it creates: virtual functions, subfunctions, rxe, siw.
"""

from collections.abc import Collection, Iterable
from typing import Annotated

import msgspec

from agent.sdk.hardware import CheckState, Levels, Subject
from exporters.rdma.tree import RdmaDevice

ACTIVE = 4  # IB_PORT_ACTIVE (ib_verbs.h)
MAX_RATE = 1e15  # The greatest plausible rate, in bytes per second


class Best(msgspec.Struct):
    """The best state of a port: whether it was ever active, and its highest rate in bytes per second."""

    active: bool = False
    rate: Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE)] = 0.0


class Expected(msgspec.Struct):
    """A PCI function's device: its name, PCI path and NUMA node when last seen, and its ports' best state.

    ``missing``: the device is absent. ``hidden``: it may be in another network namespace.
    """

    device: str
    pci_path: tuple[str, ...]
    numa: int
    ports: dict[int, Best] = {}
    missing: bool = False
    hidden: bool = False


class Baseline(msgspec.Struct):
    """``functions``: the expected devices by PCI address."""

    functions: dict[str, Expected] = {}


def ignore(baseline: Baseline, names: Collection[str]) -> None:
    """Remove the devices with these names from the baseline."""
    functions = baseline.functions.items()
    baseline.functions = {pci: expected for pci, expected in functions if expected.device not in names}


def learn(baseline: Baseline, devices: Collection[RdmaDevice], hidden: Collection[str]) -> bool:
    """Add new devices and better states to the baseline. Return whether a device vanished since the previous call.

    ``hidden``: PCI functions whose device, if it is not visible, may be in another network namespace.
    """
    present = _by_function(baseline, devices)
    names = {device.name for device in devices}
    vanished = False
    for pci, expected in baseline.functions.items():
        absent = pci not in present
        expected.hidden = absent and pci in hidden
        missing = absent and not expected.hidden
        vanished = vanished or (missing and not expected.missing)
        expected.missing = missing
        if absent and expected.device in names:  # the driver has given the name to another device
            expected.device = pci
    for pci, device in present.items():
        expected = baseline.functions.setdefault(pci, Expected(device.name, device.pci_path, device.numa))
        expected.device, expected.pci_path, expected.numa = device.name, device.pci_path, device.numa
        for port in device.ports:
            best = expected.ports.setdefault(port.number, Best())
            if port.state == ACTIVE:
                best.active = True
                best.rate = max(best.rate, port.rate or 0.0)
    return vanished


def levels(baseline: Baseline, devices: Iterable[RdmaDevice]) -> Levels:
    """Return the devices' checks by their expected state; a port with an unreadable state or rate fails no check."""
    present = _by_function(baseline, devices)
    states: dict[tuple[Subject, str], CheckState] = {}
    for pci, expected in sorted(baseline.functions.items()):
        if not expected.hidden:
            for check, healthy in _judge(expected, present.get(pci)).items():
                states[Subject("nic", expected.device), check] = CheckState.of(healthy)
    return states


def _by_function(baseline: Baseline, devices: Iterable[RdmaDevice]) -> dict[str, RdmaDevice]:
    """Return the physical devices by PCI function. Of several devices, the known one is used, else the first."""
    by_pci: dict[str, RdmaDevice] = {}
    for device in devices:
        known = baseline.functions.get(device.pci)
        if device.physical and (device.pci not in by_pci or (known is not None and known.device == device.name)):
            by_pci[device.pci] = device
    return by_pci


def _judge(expected: Expected, device: RdmaDevice | None) -> dict[str, bool]:
    ports = {port.number: port for port in device.ports} if device is not None else {}
    up = fast = True
    for number, best in expected.ports.items():
        port = ports.get(number)
        if best.active and device is not None:
            up = up and port is not None and port.state in (ACTIVE, None)
            slow = port is not None and port.state == ACTIVE and port.rate is not None and port.rate < best.rate
            fast = fast and not slow
    return {"rdma_device_missing": device is not None, "rdma_port_down": up, "rdma_rate_degraded": fast}
