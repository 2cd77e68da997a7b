"""What NVML says of the NVLink fabric that a GPU belongs to (nvml.h: GPU fabric info). Pure."""

from __future__ import annotations

from exporters.nvml.reading import Fabric

STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
COMPLETED = 3
_TRUE, _FALSE = 1, 2
_BAD: dict[str, tuple[int, int]] = {
    "degraded_bandwidth": (0, _TRUE),
    "route_recovery": (2, _TRUE),
    "route_unhealthy": (4, _TRUE),
    "access_timeout_recovery": (6, _TRUE),
    "no_partition": (12, _FALSE),
    "manager_disconnected": (14, _FALSE),
}
"""By the place of its two bits in the health mask, and which value of the two is the bad one; 0 is not supported."""
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, 1
_PASSING = frozenset({"route_recovery", "access_timeout_recovery"})
"""The fabric is at work on it."""
_OF_DOMAIN = frozenset({"no_partition", "manager_disconnected", "incorrect_configuration"})
"""What is wrong with a place in a domain of many nodes (IMEX): nothing to a node that is in none."""


def issues(fabric: Fabric) -> dict[str, bool]:
    """Whether each thing that this fabric can tell is wrong; empty where it tells nothing."""
    if fabric.health is None:
        return {}
    mask = fabric.health
    found = {name: (mask >> shift & 3) == bad for name, (shift, bad) in _BAD.items() if mask >> shift & 3}
    configuration = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    if configuration:
        found["incorrect_configuration"] = configuration != _CONFIGURATION_GOOD
    return found


def is_of_domain(fabric: Fabric | None) -> bool:
    """True for a GPU of an NVLink domain, which may span nodes; within one node alone there is no UUID of one."""
    return fabric is not None and bool(fabric.cluster)


def is_well(fabric: Fabric) -> bool:
    """True when the GPU has joined, and nothing is wrong but what recovers, or what only a domain's GPU needs."""
    wrong = {name for name, bad in issues(fabric).items() if bad} - _PASSING
    if not is_of_domain(fabric):
        wrong -= _OF_DOMAIN
    return fabric.state == COMPLETED and fabric.status == 0 and not wrong
