"""The task of one node of a madengine run: its state, and whether madengine's verdict is right. Pure.

The node's script ends at the first failure and then writes a last line with the exit code. The script logs madengine's
own exit code only if it is 0. So the exporter uses the code in the last line. A task without this line still runs or
was killed. Copies of madengine's lists decide which lines fail a run.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.madengine.results import MAX_NUMBER, as_label

MAX_LINE_CHARACTERS = 4096  # The parser ignores the rest of a longer line
MAX_NODES = 65_536
MAX_CODE = 255
Step = Literal["started", "running", "returned", "exited"]
_STEPS: dict[str, Step] = {
    "task script started": "started",
    "about to run madengine": "running",
    "madengine exited": "returned",
    "task script exiting": "exited",
}
_N = r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
_MARKER = re.compile(
    r"\[DEBUG\] \S{1,64} Node ([0-9]{1,6}) \([^()]{1,255}\): "
    r"(?:(task script started|about to run madengine)|"
    r"(madengine exited|task script exiting) with code ([0-9]{1,3}))\s*$",
    re.ASCII,
)
_PERFORMANCE = re.compile(
    rf"performance:\s{{1,8}}({_N})(?:,?\s{{0,8}}/[A-Za-z]{{1,16}}\s{{0,8}},?|,)?\s{{1,8}}([^\s,]+)"
)
_TRAINED = re.compile(rf"\b(train_samples_per_second)['\"]?\s{{0,8}}[:=]\s{{0,8}}({_N})", re.ASCII)
_BARRIER = re.compile(r"TCP barrier timeout on master: accepted=([0-9]{1,6})/([0-9]{1,6})\b", re.ASCII)

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
LOST_SECONDS = 60.0  # A task without a last line, without output for this long, and without a live rank was killed
MAX_METRICS = 16  # Limit of metrics per task
_NAME = re.compile(r"madengine-(.{1,200})_[0-9]{1,20}_node_([0-9]{1,6})\.(out|err)")
_Text = Annotated[str, msgspec.Meta(max_length=256)]
TaskState = Step | Literal["lost"]
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
    node_rank: int
    is_output: bool


class NodeTask(msgspec.Struct):
    """One node's task. ``step``: last marker; ``code``: exit status in its last line; ``seconds``: last output (epoch).

    ``results``: the first value of each metric, as in madengine. ``failures``: count of failure lines by pattern.
    ``missing_nodes``: number of nodes missing at the master's last barrier timeout.
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
        text = line[:MAX_LINE_CHARACTERS]
        marker = _MARKER.search(text) if "[DEBUG] " in text else None
        barrier = _BARRIER.search(text) if "TCP barrier timeout" in text else None
        if marker is not None and int(marker[1]) < MAX_NODES and int(marker[4] or 0) <= MAX_CODE:
            self._take_step(_STEPS[marker[2] or marker[3]], marker[4])
        elif barrier is not None:
            missing = int(barrier[2]) - int(barrier[1])
            self.missing_nodes = missing if 0 <= missing < MAX_NODES else self.missing_nodes
        elif "performance:" in text and (match := _PERFORMANCE.search(text)) is not None:
            self._take_result(match[2], float(match[1]))
        elif "train_samples_per_second" in text and (match := _TRAINED.search(text)) is not None:
            self._take_result(match[1], float(match[2]))
        if is_output and (failure := read_failure(line)):
            self.failures[failure] = saved_sum(self.failures.get(failure, 0))

    def state(self, now: float, *, has_live_ranks: bool) -> TaskState | None:
        """Return the task's state; None before the task's first marker line. ``now``: seconds since the epoch."""
        if not self.step or self.step == "exited":
            return self.step or None
        if not has_live_ranks and now - self.seconds > LOST_SECONDS:
            return "lost"
        return self.step

    def contradiction(self, node_rank: int, state: TaskState | None, *, has_dead_ranks: bool) -> Contradiction | None:
        """Return why madengine's verdict of success is wrong; None if the verdict is right, or failure.

        A worker (node rank above 0) without a failure line is a success for madengine, even if its task is ``lost``.
        """
        if self.failures or not (self.results or node_rank > 0):
            return None
        if state == "lost":
            return "lost"
        if self.code:
            return "exit_code"
        return "rank_dead" if has_dead_ranks else None

    def _take_step(self, step: Step, code: str | None) -> None:
        if step == "started" and self.step:  # the job was requeued, or output came before the marker
            self.code, self.results, self.failures, self.missing_nodes = None, {}, {}, None
        self.step = step
        if step == "exited" and code is not None:
            self.code = int(code)

    def _take_result(self, metric: str, value: float) -> None:
        if abs(value) <= MAX_NUMBER and len(self.results) < MAX_METRICS:
            self.results.setdefault(as_label(metric), value)


def read_name(path: str) -> TaskFile | None:
    """Return the parsed file name; None if it is not the name of a node's output."""
    match = _NAME.fullmatch(os.path.basename(path))
    return None if match is None else TaskFile(as_label(match[1]), int(match[2]), match[3] == "out")
