"""The task of one node of a madengine run: how far it came, and whether madengine judges it as it was. Pure.

The node's script ends at the first failure and writes a last line as it does; what madengine returned is written only
where that was 0. So the code of the last line counts, and a task without one was killed or runs.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.madengine.lines import Marker, Measured, MissingNodes, as_label, read_line
from exporters.madengine.patterns import read_failure

LOST_SECONDS = 60.0
"""So long without a word and without a live rank, a task that wrote no last line was killed."""
MAX_METRICS = 16
"""Of one task."""
_NAME = re.compile(r"madengine-(.{1,200})_([0-9]{1,20})_node_([0-9]{1,6})\.(out|err)")

_Text = Annotated[str, msgspec.Meta(max_length=256)]
TaskState = Literal["started", "running", "returned", "exited", "lost"]
Verdict = Literal["SUCCESS", "FAILURE"]
Contradiction = Literal["lost", "exit_code", "rank_dead"]


class TaskFile(msgspec.Struct, frozen=True):
    """What the name of a node's output says."""

    model: str
    job_id: str
    node_rank: int
    is_output: bool


class Barrier(msgspec.Struct):
    """Nodes that had not come when the master last gave up the barrier."""

    missing: Annotated[int, msgspec.Meta(ge=0)] | None = None


class NodeTask(msgspec.Struct):
    """One node's task. ``step``: the last marker; ``code``: of its last line; ``seconds``: its last word, epoch.

    ``results``: the first of each metric, as madengine takes them. ``failures``: lines that fail a run, by pattern.
    """

    model: _Text = ""
    step: Literal["", "started", "running", "returned", "exited"] = ""
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    seconds: SavedSeconds = 0.0
    results: dict[_Text, float] = {}
    failures: dict[_Text, SavedCount] = {}
    barrier: Barrier = msgspec.field(default_factory=Barrier)

    def take(self, line: str, seconds: float, *, is_output: bool) -> None:
        """Take in a line that was written by this time; madengine judges a run by its output alone."""
        self.seconds = max(self.seconds, seconds)
        found = read_line(line)
        if isinstance(found, Marker):
            self._take_marker(found)
        elif isinstance(found, Measured):
            if len(self.results) < MAX_METRICS:
                self.results.setdefault(found.metric, found.value)
        elif isinstance(found, MissingNodes):
            self.barrier.missing = found.count
        if is_output and (failure := read_failure(line)):
            self.failures[failure] = saved_sum(self.failures.get(failure, 0))

    def state(self, now: float, *, has_live_ranks: bool) -> TaskState | None:
        """How far it is; None before its first word. ``now``: epoch seconds."""
        if not self.step or self.step == "exited":
            return self.step or None
        if not has_live_ranks and now - self.seconds > LOST_SECONDS:
            return "lost"
        return self.step

    def verdict(self, node_rank: int) -> Verdict:
        """madengine's verdict on the task: a worker without an error has succeeded, even if it was lost."""
        if self.failures:
            return "FAILURE"
        return "SUCCESS" if self.results or node_rank > 0 else "FAILURE"

    def contradiction(self, node_rank: int, state: TaskState | None, *, has_dead_ranks: bool) -> Contradiction | None:
        """Why it did not succeed though madengine says so; None where nothing is known against it."""
        if self.verdict(node_rank) != "SUCCESS":
            return None
        if state == "lost":
            return "lost"
        if self.code:
            return "exit_code"
        return "rank_dead" if has_dead_ranks else None

    def _take_marker(self, marker: Marker) -> None:
        if marker.step == "started" and self.step:  # a requeued job's; else its output came first
            self.code, self.results, self.failures, self.barrier = None, {}, {}, Barrier()
        self.step = marker.step
        if marker.step == "exited":
            self.code = marker.code


def read_name(path: str) -> TaskFile | None:
    """What the name of a file says; None for one that is no node's output."""
    found = _NAME.fullmatch(os.path.basename(path))
    return None if found is None else TaskFile(as_label(found[1]), found[2], int(found[3]), found[4] == "out")
