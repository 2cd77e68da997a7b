"""Finds the launcher above a rank, and reads its command line. It blocks: for a thread of the exporter's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from agent.sdk.exporter import Guard
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.nvrx.options import LauncherOptions, read_options

MAX_ANCESTORS = 8
"""Looked at above a rank: a launcher starts it, or a shell or numactl in between."""


class StartedRank(NamedTuple):
    """A rank that a launcher started, its user, and how many nodes its environment asks for (MIN:MAX, or empty)."""

    key: ProcessKey
    uid: int
    nodes: str


class Launchers:
    """What the launchers of jobs were asked for. It is looked for once for each rank that stands for its job."""

    def __init__(self, proc: ProcFS, guard: Guard) -> None:
        self._proc = proc
        self._guard = guard
        self._found: dict[str, tuple[ProcessKey, LauncherOptions | None]] = {}

    def look(self, ranks: Mapping[str, StartedRank]) -> dict[str, LauncherOptions]:
        """By job, what the launcher of this rank of it asks for; jobs that are not named are forgotten."""
        self._found = {job_id: found for job_id, found in self._found.items() if job_id in ranks}
        for job_id, rank in ranks.items():
            known = self._found.get(job_id)
            if known is None or known[0] != rank.key:
                above = self._guard.attempt("a launcher", partial(self._above, rank), job_id=job_id)
                self._found[job_id] = (rank.key, above)
        return {job_id: options for job_id, (_, options) in self._found.items() if options is not None}

    def _above(self, rank: StartedRank) -> LauncherOptions | None:
        """The nearest launcher above a rank, of the same user; what another user runs there says nothing of the job."""
        stat = self._proc.stat(rank.key.pid)
        if stat is None or stat.key != rank.key:
            return None
        for _ in range(MAX_ANCESTORS):
            parent = self._proc.stat(stat.parent_pid)
            status = None if parent is None else self._proc.status(parent.pid)
            if parent is None or status is None or status.uid != rank.uid:
                return None
            options = read_options(self._proc.arguments(parent.pid), rank.nodes)
            if options is not None:
                return options
            stat = parent
        return None
