"""Other lines of NVRx that are worth a count: what it decided, what it found wrong. Pure; a table."""

from __future__ import annotations

import re

MAX_LINE_CHARACTERS = 4096

_LINES: tuple[tuple[str, str, str], ...] = (
    ("no_progress", "made NO progress", r"Training cycle #[0-9]{1,10} made NO progress"),
    ("progress", "made progress", r"Training cycle #[0-9]{1,10} made progress"),
    ("stopped_without_progress", "EARLY TERMINATION", r"EARLY TERMINATION: [0-9]{1,10} consecutive training cycles"),
    ("restart_of_own_failure", "Worker group FAILED", r"Worker group FAILED\. [0-9]{1,6}/[0-9]{1,6} attempts left"),
    ("restart_of_others_failure", "Joining cluster restart", r"Joining cluster restart \(group_rank="),
    ("processes_left", "remaining processes in worker PGIDs", r"Found [1-9][0-9]{0,9} remaining processes"),
    ("gpu_memory_held", "GPU memory to be reclaimed", r"Timeout waiting for GPU memory to be reclaimed"),
    ("gpu_needs_reset", "Requires a reset to recover", r"GPU [0-9]{1,3}: Requires a reset to recover"),
    ("gpu_needs_reboot", "node reboot", r"GPU [0-9]{1,3}: .{0,128}node reboot"),
    ("gpu_needs_drain", "peer-to-peer traffic to be drained", r"GPU [0-9]{1,3}: .{0,128}peer-to-peer traffic"),
    ("gpu_degraded", "Operating at reduced capacity", r"GPU [0-9]{1,3}: .{0,128}Operating at reduced capacity"),
    ("nic_failed", "Health check FAILED", r"NIC device [\w.-]{1,64}: .{0,256}Health check FAILED"),
    ("nic_link_down", "link down counter has been incremented", r"GPU [0-9]{1,3} (?:NIC/IB|NIC|IB) .{0,64}link down"),
    ("nvlink_failed", "NVLinkWindowHealthCheck", r"NVLinkWindowHealthCheck: GPU [0-9]{1,3} unhealthy"),
    ("stop_recommended", "recommends stopping the job", r"Attribution recommends stopping the job"),
    ("restart_refused", "must not be restarted", r"NVRx decided the job must not be restarted"),
    ("ranks_failed", "exited with non-zero exit code", r"Some rank\(s\) exited with non-zero exit code"),
    ("ended_well", "Agent exits with exit code", r"Agent exits with exit code = 0\."),
    (
        "restart_in_process",
        "_ex: ",
        r"rank=[0-9]{1,7} (?:init|health|fn|other|term|finalize|restart|exit|terminate|completion|abort)_ex: ",
    ),
    ("nested_restart", "[NestedRestarter]", r"\[NestedRestarter\] name=\[In(?:Process|Job)\] state=handling"),
)
_COMPILED = tuple((name, word, re.compile(pattern, re.ASCII)) for name, word, pattern in _LINES)
NOTICES = tuple(name for name, _, _ in _LINES)
"""All there are, in order."""


def read_notice(line: str) -> str:
    """Which of NOTICES a line is; empty for nearly all."""
    text = line[:MAX_LINE_CHARACTERS]
    return next((name for name, word, pattern in _COMPILED if word in text and pattern.search(text)), "")
