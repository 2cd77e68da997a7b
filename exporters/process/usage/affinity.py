"""Which CPUs a process may run on, and which NUMA nodes these are of; pure but for one look at sysfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from agent.sdk.system import sysfs

MAX_CPUS = 8192
"""As many as Linux can have (NR_CPUS)."""
_NODE = re.compile(r"node(\d{1,4})")
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8` (cpuset(7)); none of what is no list, or beyond MAX_CPUS."""
    if _LIST.fullmatch(text) is None:
        return frozenset()
    cpus: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        cpus.update(range(int(first), min(int(last or first), MAX_CPUS - 1) + 1))
    return frozenset(cpus)


def read_nodes(sys_root: Path) -> dict[int, frozenset[int]]:
    """Return the CPUs of each NUMA node (blocking); empty where the kernel has no such folder."""
    found = {}
    for name in sysfs.entries(sys_root / "devices/system/node"):
        if (match := _NODE.fullmatch(name)) is not None:
            text = sysfs.read_text(sys_root / "devices/system/node" / name / "cpulist")
            found[int(match[1])] = parse_cpus(text or "")
    return found


def nodes_of(cpus: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> str:
    """Return the NUMA nodes that have some of these CPUs, with commas."""
    return ",".join(str(node) for node, own in sorted(nodes.items()) if cpus & own)
