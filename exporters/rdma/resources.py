"""Queue pairs, memory regions and other objects in use on each RDMA device, as the kernel counts them. Blocking.

The kernel itself keeps this summary (RDMA_NLDEV_CMD_RES_GET of rdma/rdma_netlink.h). A list of queue pairs would need
one firmware command for each pair on mlx5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from agent.sdk.metrics import Family
from agent.sdk.system import netlink

KINDS = frozenset({"pd", "cq", "qp", "cm_id", "mr", "srq"})
"""Protection domains, completion queues, queue pairs, cm connections, memory regions, shared receive queues."""
MAX_COUNT = 2**53

RESOURCES = Family(
    "rankwatch_rdma_resources",
    "gauge",
    "Objects of all processes in use on an RDMA device, by kind: qp (queue pairs), mr (memory regions), cq, pd, cm_id, "
    "srq. Only if all_counters is set.",
    ("device", "kind"),
    "6 per device, if all_counters is set",
)
Counts = dict[str, dict[str, int]]
"""Number of objects by device and kind."""

_SUMMARIES = 5 << 10 | 9  # of the client NLDEV
_DEVICE_NAME, _SUMMARY, _ENTRY, _ENTRY_NAME, _ENTRY_COUNT = 2, 15, 16, 17, 18
_COUNT = struct.Struct("=Q")


def summary(answer: bytes) -> tuple[str, dict[str, int]]:
    """Return a device's name, and its number of objects by kind, from one message of the answer."""
    parts = dict(netlink.attributes(answer))
    device = parts.get(_DEVICE_NAME, b"").rstrip(b"\0").decode(errors="replace")
    return device, dict(_entries(parts.get(_SUMMARY, b"")))


def _entries(raw: bytes) -> Iterator[tuple[str, int]]:
    for kind, entry in netlink.attributes(raw):
        parts = dict(netlink.attributes(entry)) if kind == _ENTRY else {}
        name = parts.get(_ENTRY_NAME, b"").rstrip(b"\0").decode(errors="replace")
        if name in KINDS and len(parts.get(_ENTRY_COUNT, b"")) == _COUNT.size:
            (count,) = _COUNT.unpack(parts[_ENTRY_COUNT])
            if count <= MAX_COUNT:
                yield name, count


def read_resources(open_channel: Callable[[int], netlink.Netlink] = netlink.open_channel) -> Counts:
    """Return the objects in use on all devices. Raise OSError if the netlink query fails."""
    with open_channel(netlink.RDMA) as kernel:
        return {device: kinds for device, kinds in map(summary, kernel.dump(_SUMMARIES, b"")) if device}
