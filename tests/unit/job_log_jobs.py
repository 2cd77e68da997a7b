"""Jobs in the form that the log reader takes, and the events of a log line, for tests."""

from __future__ import annotations

import os
from typing import Any

from rank_table import view

from exporters.job_log.catalogue import Catalogue, catalogue
from exporters.job_log.jobs import LoggedJob, rank_of
from exporters.job_log.matcher import LogEvent, events

CATALOGUE = catalogue()
OWNER = os.getuid() or 1000
"""The owner of jobs and logs. It is not root, because root passes every check."""


def classify(line: bytes, known: Catalogue = CATALOGUE) -> LogEvent | None:
    """Return the event in a line, or None."""
    return next(events(line, known), None)


def job(job_id: str = "4711", ranks: int = 8, **more: Any) -> LoggedJob:
    """Return a job whose ranks 0 to 3 are the processes 4000 to 4003 of this node."""
    here = tuple(view(4000 + rank, str(rank), parent_pid=1) for rank in range(4))
    fields: dict[str, Any] = {
        "uids": frozenset({OWNER}),
        "ids": frozenset({job_id}),
        "pods": frozenset(),
        "world_size": ranks,
        "tasks_are_ranks": False,
        "pids": {view.process.key.pid: rank_of(view) for view in here},
        "ranks": here,
        "local_ranks": {("", "1"): "3", ("pod-a", "1"): "2"},
        "hostnames": frozenset({"here", "pod-a"}),
    }
    return LoggedJob(job_id, **(fields | more))


def event(line: str) -> LogEvent:
    """Return the event in a line that has one."""
    match = classify(line.encode())
    assert match is not None, line
    return match
