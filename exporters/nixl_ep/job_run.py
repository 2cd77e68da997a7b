"""The state of one job's NIXL-EP run, from the logs of its nodes and the launcher's output. Pure.

A planned end of ``srun`` is not a failure. Then srun logs only the terminated tasks and both stages of the job step's
end.
"""

from __future__ import annotations

import os
import re
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedSeconds
from agent.sdk.files import JobLines, SavedTexts
from exporters.nixl_ep.plan import Plan
from exporters.nixl_ep.run import MAX_PHASE, Launch, NodeRun, RankRun

MAX_LINE_CHARACTERS = 4096

_FAILURES: tuple[tuple[str, str], ...] = (
    ("primary_exited", "Primary NIXL EP launch exited before phase "),
    ("no_script", "python3: can't open file"),
    ("traceback", "Traceback (most recent call last):"),
    ("services_timeout", "Timed out waiting for NIXL EP master services"),
    ("no_plan_phase", "no plan phases were found for rank"),
    ("receive_timeout", "recvValueWithTimeout failed"),
    ("collective_timeout", "timed out after 300000ms"),
    ("remote_memory", "Failed to prepare remote memory view"),
    ("phase_timeout", "Timed out waiting for phase "),
    ("early_failure", "Detected an early NIXL EP failure while waiting for phase "),
    ("srun_error", "srun: error:"),
    ("exit_code", "Exited with exit code"),
)
"""The first matching category is used. Most failures also log lines of later categories."""
CATEGORIES = tuple(category for category, _ in _FAILURES)

_COMPLETED = re.compile(r"Detected completion of phase ([0-9]{1,7})(?![0-9])", re.ASCII)
_EXCUSES = ("All NIXL EP launches completed successfully", "Ignoring provisional NIXL EP planned-rank-removal exit 143")
_TERMINATED = re.compile(r"srun: error: [\w.\[\],-]{1,4096}: tasks? [0-9,-]{1,4096}: Terminated\s*$", re.ASCII)
_TERMINATING = "srun: Terminating StepId="
_FORCED = "srun: Force Terminated StepId="
MAX_LOGS = 4096
MAX_ENTRIES = 16_384
"""Limit of kept rank entries over all logs of a run, at most 16 MB. A run at the limit ignores further lines."""
SETTLE_SECONDS = 10.0  # After this time without another srun line, the end of srun is complete and the failure is final
OF_SRUN = ("srun_error", "exit_code")  # Failure categories that a planned end also produces
_NODE_LOG = re.compile(r"nixl-ep-node-([0-9]{1,6})\.log", re.ASCII)
_Path = Annotated[str, msgspec.Meta(max_length=4096)]


def read_completed(line: str) -> int | None:
    """Return the phase that this line reports as completed; None for most lines."""
    match = _COMPLETED.search(line)
    return int(match[1]) if match is not None and int(match[1]) <= MAX_PHASE else None


def is_excuse(line: str) -> bool:
    """Return whether this launcher line says that srun's end was planned."""
    return any(words in line for words in _EXCUSES)


def read_failure(line: str) -> str:
    """Return the failure category (of CATEGORIES) of this line; an empty text for most lines."""
    return next((category for category, word in _FAILURES if word in line), "")


class SrunEnd(msgspec.Struct):
    """Which ``srun`` lines the log has: the three kinds of a planned end, and ``others``: any further line."""

    terminated: bool | int = False  # int: a checkpoint of an earlier version
    terminating: bool | int = False
    forced: bool | int = False
    others: bool | int = False

    def take(self, line: str) -> None:
        """Add a line of srun."""
        if _TERMINATED.search(line):
            self.terminated = True
        elif _TERMINATING in line:
            self.terminating = True
        elif _FORCED in line:
            self.forced = True
        else:
            self.others = True

    def is_planned(self, *, plan_kills: bool) -> bool:
        """Return whether srun ended as planned: the plan kills ranks, and srun logged exactly the three kinds."""
        return plan_kills and not self.others and bool(self.terminated and self.terminating and self.forced)


class NodeLog(msgspec.Struct):
    """The state from one log file. ``generation`` changes when the file restarts from the beginning."""

    generation: int = 0
    run: NodeRun = msgspec.field(default_factory=NodeRun)


class JobRun(msgspec.Struct):
    """The run of a job in its newest log directory. Times are seconds since the epoch.

    ``completed``: last phase that the launcher reported as completed. ``excused``: the launcher logged that srun's end
    was planned.
    """

    directory: _Path = ""
    seconds: SavedSeconds = 0.0
    logs: dict[_Path, NodeLog] = {}
    failures: set[Annotated[str, msgspec.Meta(max_length=32)]] = set()
    srun: SrunEnd = msgspec.field(default_factory=SrunEnd)
    srun_seconds: SavedSeconds = 0.0
    completed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    excused: bool = False

    def take(self, lines: JobLines) -> None:
        """Add new lines of a file. Lines from a directory older than the current one are ignored."""
        directory = os.path.dirname(lines.path)
        is_new = directory != self.directory
        if is_new:
            if lines.seconds < self.seconds:
                return
            self.directory, self.logs = directory, {}
        elif lines.path in self.logs:  # the first log of a requeued run starts again
            is_new = lines.generation > max(log.generation for log in self.logs.values())
        if is_new:
            self.failures, self.srun, self.srun_seconds = set(), SrunEnd(), 0.0
            self.completed, self.excused = None, False
        self.seconds = max(self.seconds, lines.seconds)
        log = self._log(lines)
        for line in lines.lines:
            text = line[:MAX_LINE_CHARACTERS]
            if log is not None:
                log.run.take(line, lines.seconds)
            elif node_of(lines.path) is None:
                completed = read_completed(text)
                self.completed = self.completed if completed is None else completed
                self.excused = self.excused or is_excuse(text)
            self._take_failure(text, lines.seconds)

    def ranks(self) -> dict[int, RankRun]:
        """Return the state of each rank, from the log with the rank's highest phase."""
        best: dict[int, RankRun] = {}
        for log in self.logs.values():
            for number, rank in log.run.ranks.items():
                known = best.get(number)
                if known is None or _progress(rank) > _progress(known):
                    best[number] = rank
        return best

    def is_full(self) -> bool:
        """Return whether the run has reached its limit of entries. Users control the number of lines."""
        return sum(1 + log.run.entries() for log in self.logs.values()) >= MAX_ENTRIES

    def phase(self) -> int | None:
        """Return the newest phase that any rank began; None before the first phase."""
        return max((phase for log in self.logs.values() if (phase := log.run.phase()) is not None), default=None)

    def launches(self) -> list[Launch] | None:
        """Return the launches on this node in log order; None unless exactly one log has launches."""
        launches = [log.run.launches for log in self.logs.values() if log.run.launches]
        return launches[0] if len(launches) == 1 else None

    def failure(self, plan: Plan | None, now: float) -> str:
        """Return the failure category of the run; an empty text without failure or after a planned end."""
        kills = plan is not None and any(phase.killed for phase in plan.phases)
        is_open = now - self.srun_seconds < SETTLE_SECONDS and not self.srun.others
        is_planned = self.excused or self.srun.is_planned(plan_kills=kills) or (kills and is_open)
        for category in CATEGORIES:
            if category in self.failures and not (category in OF_SRUN and is_planned):
                return category
        return ""

    def _log(self, lines: JobLines) -> NodeLog | None:
        """Return the state of a node's log; None for launcher output and above MAX_LOGS."""
        if node_of(lines.path) is None:
            return None
        log = self.logs.get(lines.path)
        if log is None and len(self.logs) >= MAX_LOGS:
            return None
        if log is None or log.generation != lines.generation:
            log = self.logs[lines.path] = NodeLog(lines.generation)
        return log

    def _take_failure(self, line: str, seconds: float) -> None:
        if "srun: " in line:
            self.srun.take(line)
            self.srun_seconds = max(self.srun_seconds, seconds)
        if category := read_failure(line):
            self.failures.add(category)


class SavedRuns(SavedTexts):
    """The checkpoint: the state from all lines read before, by job."""

    runs: dict[Annotated[str, msgspec.Meta(max_length=256)], JobRun] = msgspec.field(default_factory=dict)


def node_of(path: str) -> int | None:
    """Return the node's index in the job's node list from the log's name; None for launcher output."""
    match = _NODE_LOG.fullmatch(os.path.basename(path))
    return None if match is None else int(match[1])


def _progress(rank: RankRun) -> tuple[int, float]:
    return (-1 if rank.phase is None else rank.phase), rank.began_seconds
