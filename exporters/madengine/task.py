"""The task of one node of a madengine run: its state, and whether madengine's verdict is right. Pure.

The node's script ends at the first failure and then writes a last line with the exit code. The script logs
madengine's own exit code only if it is 0. So the code in the last line counts. A task without a last line runs or
was killed. Lines fail a run by lists that are copies of madengine's.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.madengine.lines import Marker, Measured, MissingNodes, as_label, read_line

MAX_LINE_CHARACTERS = 4096
"""The parser ignores the rest of a longer line."""

FAILURES = (
    "OutOfMemoryError", "HIP out of memory", "CUDA out of memory", "RuntimeError:", "AssertionError:", "ValueError:",
    "SystemExit", "failed (exitcode:", "Traceback (most recent call last)", "FAILED", "Exception:", "ImportError:",
    "ModuleNotFoundError:",
)  # fmt: skip
BENIGN = (
    "Failed to establish connection to the metrics exporter agent",
    "RpcError: Running out of retries to initialize the metrics agent",
    "Metrics will not be exported",
    "FutureWarning",
    "Opened result file:",
    "SQLite3 generation ::",
    "rocpd_op:",
    "rpd_tracer:",
    "RuntimeError: Console script timeout",
    "rocEnvTool/console.py",
    "rocEnvTool/rocenv_tool.py",
    "Found error pattern",
    "[rocprofv3]",
)
"""madengine ignores lines with one of these texts."""
_BENIGN = re.compile(
    r"^(?:[EW][0-9]{8}.{0,256}generateRocpd\.cpp|W[0-9]{8}.{0,256}simple_timer\.cpp|E[0-9]{8}.{0,256}tool\.cpp)",
    re.ASCII,
)
LOST_SECONDS = 60.0
"""A task without a last line, without output for this long, and without a live rank was killed."""
MAX_METRICS = 16
"""Limit of metrics per task."""
_NAME = re.compile(r"madengine-(.{1,200})_([0-9]{1,20})_node_([0-9]{1,6})\.(out|err)")
_Text = Annotated[str, msgspec.Meta(max_length=256)]
TaskState = Literal["started", "running", "returned", "exited", "lost"]
Verdict = Literal["SUCCESS", "FAILURE"]
Contradiction = Literal["lost", "exit_code", "rank_dead"]


def read_failure(line: str) -> str:
    """Return the pattern by which a line fails a run; an empty text for nearly all lines and for benign lines."""
    text = line[:MAX_LINE_CHARACTERS]
    failure = next((words for words in FAILURES if words in text), "")
    if not failure or _BENIGN.search(text) or any(words in text for words in BENIGN):
        return ""
    return failure


class TaskFile(msgspec.Struct, frozen=True):
    """The parsed name of a node's output file."""

    model: str
    job_id: str
    node_rank: int
    is_output: bool


class NodeTask(msgspec.Struct):
    """One node's task. ``step``: last marker; ``code``: exit code of its last line; ``seconds``: last output (epoch).

    ``results``: the first value of each metric, as in madengine. ``failures``: count of failure lines by pattern.
    ``missing_nodes``: in the master's last barrier timeout.
    """

    model: _Text = ""
    step: Literal["", "started", "running", "returned", "exited"] = ""
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    seconds: SavedSeconds = 0.0
    results: dict[_Text, float] = {}
    failures: dict[_Text, SavedCount] = {}
    missing_nodes: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def take(self, line: str, seconds: float, *, is_output: bool) -> None:
        """Add a line written at or before ``seconds`` (epoch). madengine searches failures only in standard output."""
        self.seconds = max(self.seconds, seconds)
        parsed = read_line(line)
        if isinstance(parsed, Marker):
            self._take_marker(parsed)
        elif isinstance(parsed, Measured):
            if len(self.results) < MAX_METRICS:
                self.results.setdefault(parsed.metric, parsed.value)
        elif isinstance(parsed, MissingNodes):
            self.missing_nodes = parsed.count
        if is_output and (failure := read_failure(line)):
            self.failures[failure] = saved_sum(self.failures.get(failure, 0))

    def state(self, now: float, *, has_live_ranks: bool) -> TaskState | None:
        """Return the task's state; None before its first marker. ``now``: seconds since the epoch."""
        if not self.step or self.step == "exited":
            return self.step or None
        if not has_live_ranks and now - self.seconds > LOST_SECONDS:
            return "lost"
        return self.step

    def verdict(self, node_rank: int) -> Verdict:
        """Return madengine's verdict on the task. A worker without a failure line succeeds, even if it is lost."""
        if self.failures:
            return "FAILURE"
        return "SUCCESS" if self.results or node_rank > 0 else "FAILURE"

    def contradiction(self, node_rank: int, state: TaskState | None, *, has_dead_ranks: bool) -> Contradiction | None:
        """Return why madengine's SUCCESS is wrong; None if the verdict is FAILURE or nothing contradicts it."""
        if self.verdict(node_rank) != "SUCCESS":
            return None
        if state == "lost":
            return "lost"
        if self.code:
            return "exit_code"
        return "rank_dead" if has_dead_ranks else None

    def _take_marker(self, marker: Marker) -> None:
        if marker.step == "started" and self.step:  # a requeued job, or output before the marker
            self.code, self.results, self.failures, self.missing_nodes = None, {}, {}, None
        self.step = marker.step
        if marker.step == "exited":
            self.code = marker.code


def read_name(path: str) -> TaskFile | None:
    """Return the parsed file name; None if it is not the name of a node's output."""
    match = _NAME.fullmatch(os.path.basename(path))
    return None if match is None else TaskFile(as_label(match[1]), match[2], int(match[3]), match[4] == "out")
