"""Causes of rank exits, a closed set: a failed check of the rank's hardware, an Xid, a category of its job's log, or
`oom` (the OOM killer)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from agent.core.identity import RankLabel
from agent.core.leased import Leased
from agent.hardware.ledger import CHECKS

OOM = "oom"
HARDWARE = frozenset(name for name, counts in CHECKS.items() if counts)
"""Checks of the health ledger that make a rank unhealthy by default."""
LOG = frozenset(
    {
        "collective_mismatch", "cuda_assert", "cuda_error", "cuda_illegal_access", "cuda_oom", "disk_full",
        "driver_mismatch", "framework_error", "gpu_hardware", "gpu_memory_taken", "gpu_unavailable", "hang_killed",
        "hip_page_fault", "host_memory_error", "host_oom", "ib_error", "launcher_failed", "nan_or_inf", "node_lost",
        "port_in_use", "program_error", "rendezvous", "segfault", "shm_full", "storage_error",
    }
)  # fmt: skip
"""Log categories of exporter job_log that are root causes. _SHORTER merges related categories into one."""
CAUSES = HARDWARE | LOG | {OOM}
_XID = re.compile(r"xid_[0-9]{1,3}")
_SHORTER = {
    "ib_retry_exceeded": "ib_error", "ib_local_protection": "ib_error", "ib_remote_invalid_request": "ib_error",
    "ib_completion_error": "ib_error", "ib_local_access": "ib_error", "ib_async_event": "ib_error",
    "ib_call_failed": "ib_error", "port_error": "ib_error", "node_failed": "node_lost", "barrier_missing": "rendezvous",
    "rendezvous_incomplete": "rendezvous", "rendezvous_unreachable": "rendezvous", "startup_barrier": "rendezvous",
    "watchdog_stuck": "hang_killed", "watchdog_exception": "hang_killed", "peer_gpu_memory": "gpu_hardware",
    "image_failed": "launcher_failed",
}  # fmt: skip


def cause(word: str) -> str:
    """Return the cause for a check, a log category or ``xid_N`` (N below 1,000); empty for any other word."""
    word = _SHORTER.get(word, word)
    return word if word in CAUSES or _XID.fullmatch(word) else ""


class ExitFacts:
    """Causes of exits, and the ranks whose exits are planned, as exporters report them.

    ``hardware`` returns for each rank the check that failed on its hardware while the rank ran.
    """

    def __init__(self) -> None:
        self.hardware: Callable[[], Mapping[RankLabel, str]] = dict
        self.causes: dict[str, Mapping[RankLabel, str]] = {}
        self.planned: dict[str, Collection[RankLabel]] = {}

    def of(self, source: str) -> ExitFactsWriter:
        """Return the writer for the exporter ``source``."""
        return ExitFactsWriter(self, source)

    def cause_of(self, label: RankLabel) -> str:
        """Return the cause of this rank's exit: its failed hardware check, else a log category; empty if unknown."""
        words = [self.hardware().get(label, "")]
        for causes in self.causes.values():
            words += [causes.get(label, ""), causes.get(RankLabel(label.job_id, ""), "")]
        return next(filter(None, map(cause, words)), "")

    def is_planned(self, label: RankLabel) -> bool:
        """Return True when an exporter reported that this rank's exit is planned."""
        return any(label in planned for planned in self.planned.values())


class ExitFactsWriter(Leased[ExitFacts]):
    """Writes the exit facts of one exporter."""

    def set_causes(self, causes: Mapping[RankLabel, str]) -> None:
        """Replace this exporter's causes: checks or log categories by rank; rank "" stands for the whole job."""
        self._lent.causes[self._source] = causes

    def set_planned(self, ranks: Collection[RankLabel]) -> None:
        """Replace this exporter's set of ranks whose exit is planned."""
        self._lent.planned[self._source] = ranks

    def close(self) -> None:
        """Drop this exporter's causes and end the lease; its planned exits stay."""
        self._table.causes.pop(self._source, None)
        super().close()
