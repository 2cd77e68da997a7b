"""What is expected of the node's RDMA devices, learnt since the boot: what was once there, up and fast. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from exporters.rdma.tree import Device

ACTIVE = 4
"""IB_PORT_ACTIVE (ib_verbs.h)."""


class Expected(msgspec.Struct):
    """A port as it was at its best: whether it was ever active, and its rate in bytes per second."""

    active: bool = False
    rate: float = 0.0


class Baseline(msgspec.Struct):
    """``ports`` by device and port; ``vanished`` counts devices that were there and are not."""

    ports: dict[str, dict[int, Expected]] = {}
    missing: dict[str, bool] = {}
    vanished: int = 0


class Judgement(msgspec.Struct, frozen=True):
    """A device against what it was: whether it is there, its ports up, and as fast."""

    device: str
    present: bool
    up: bool
    fast: bool


def learn(baseline: Baseline, devices: Iterable[Device]) -> None:
    """Raise what is expected to what is there, and count devices that have gone since the last look."""
    found = {device.name: device for device in devices}
    for name in baseline.ports:
        gone = name not in found
        baseline.vanished += gone and not baseline.missing.get(name, False)
        baseline.missing[name] = gone
    for name, device in found.items():
        ports = baseline.ports.setdefault(name, {})
        baseline.missing[name] = False
        for port in device.ports:
            best = ports.setdefault(port.number, Expected())
            if port.state == ACTIVE:
                best.active = True
                best.rate = max(best.rate, port.rate or 0.0)


def judge(baseline: Baseline, devices: Iterable[Device]) -> list[Judgement]:
    """Compare what is there with what is expected. A port whose state or rate cannot be read is not judged by it."""
    found = {device.name: device for device in devices}
    return [_judge(name, expected, found.get(name)) for name, expected in sorted(baseline.ports.items())]


def _judge(name: str, expected: dict[int, Expected], device: Device | None) -> Judgement:
    if device is None:
        return Judgement(name, present=False, up=True, fast=True)
    ports = {port.number: port for port in device.ports}
    up = fast = True
    for number, best in expected.items():
        port = ports.get(number)
        if not best.active:
            continue
        up = up and port is not None and port.state in (ACTIVE, None)
        slow = port is not None and port.state == ACTIVE and port.rate is not None and port.rate < best.rate
        fast = fast and not slow
    return Judgement(name, present=True, up=up, fast=fast)
