"""What the node does not tell of its hardware for want of a right, and what helps."""

from __future__ import annotations

from agent.core.metrics import Family

HARDWARE_DROP_IN = "55-hardware.conf"
"""The drop-in of the service that gives it the right to ask the kernel by netlink."""
PAUSE_FRAMES_UNREAD = Family(
    "rankwatch_netdev_pause_frames_unread",
    "gauge",
    "1 while the kernel cannot be asked for pause frames, as the agent may open no netlink socket; absent otherwise.",
    (),
    "1 per node where it may not",
)


def hardware_notes(pause_frames_unread: bool) -> list[str]:
    """Sentences for an operator: what is not known of this node's hardware, and the remedy. Pure."""
    if not pause_frames_unread:
        return []
    return [f"not known of network devices: their pause frames; that takes netlink, see {HARDWARE_DROP_IN}"]
