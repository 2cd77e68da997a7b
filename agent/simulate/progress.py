"""Advance a rank: it arrives at an operation on schedule, and completes it when its whole communicator has arrived.

Ranks see each other's progress in a shared file.
"""

import mmap
import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from agent.simulate.layout import SimulatedCommunicator
from agent.simulate.physics import OperationTimes, StepTimes, TimingPlan, step_times
from agent.simulate.writer import CommunicatorLog, SimulatedRecord

RUN_AHEAD_SECONDS = 0.03
"""How far arrivals can run ahead of completions: three polls. At a lower limit fast jobs would wait for each poll."""

CATCH_UP_SECONDS = 1.0
"""A rank that is more than this behind its schedule does not catch up: as in a real job, the stalled time is lost."""


WORD_BYTES = 8
END_REQUESTED, END_OPERATION, FAILED, HEADER_WORDS = 0, 1, 2, 3
"""Indexes of the words before the ranks' words: orderly end requested; last operation (0: none); a rank failed."""


class SharedProgress:
    """One word (WORD_BYTES) per rank: 0 before initialisation, n+1 after arrival at n operations.

    Each word has one writer. A word is aligned and written in one store: a reader never sees half a word.
    """

    def __init__(self, path: str, ranks: int) -> None:
        """Open the file, or create it. ``ranks``: number of ranks, equal in all processes."""
        size_bytes = (HEADER_WORDS + ranks) * WORD_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(fd, size_bytes)
            self._words = memoryview(mmap.mmap(fd, size_bytes)).cast("Q")
            self.header = self._words[:HEADER_WORDS]
        finally:
            os.close(fd)

    def show(self, rank: int, arrivals: int) -> None:
        """Record that ``rank`` is initialised and has arrived at ``arrivals`` operations."""
        self._words[HEADER_WORDS + rank] = arrivals + 1

    def initialised(self) -> bool:
        """Return True if every rank of the job is initialised."""
        return all(self._words[HEADER_WORDS:])

    def all_arrived(self, ranks: Iterable[int], arrivals: int) -> bool:
        """Return True if all of ``ranks`` arrived at ``arrivals`` operations or more."""
        words = self._words
        return all(words[HEADER_WORDS + rank] > arrivals for rank in ranks)


class Timeline:
    """Computes each step once for all ranks of a process, and caches the steps that are still needed."""

    def __init__(self, plan: TimingPlan) -> None:
        self._plan = plan
        self._length = len(plan.layout.step)
        self._first = 0
        self._steps: deque[tuple[float, StepTimes]] = deque()
        self._next_start_us = 0.0

    def at(self, operation: int) -> tuple[float, OperationTimes]:
        """Return the step's start (us since the job's start) and the times of operation ``operation``."""
        step, index = divmod(operation, self._length)
        while step >= self._first + len(self._steps):
            times = step_times(self._plan, self._first + len(self._steps))
            self._steps.append((self._next_start_us, times))
            self._next_start_us += times.duration_us
        start_us, times = self._steps[step - self._first]
        return start_us, times.operations[index]

    def forget_before(self, operation: int) -> None:
        """Drop the steps that end before ``operation``."""
        while self._steps and (self._first + 1) * self._length <= operation:
            self._steps.popleft()
            self._first += 1


class RankProgress:
    """Progress of one rank. ``arrived``, ``completed``: numbers of operations since the job's start.

    ``stuck_at``: the first operation at which the rank does not arrive; None: the rank arrives at all operations.
    """

    def __init__(
        self, rank: int, plan: TimingPlan, timeline: Timeline, progress: SharedProgress, stuck_at: int | None = None
    ) -> None:
        self.rank = rank
        self.arrived = 0
        self.completed = 0
        self.past_logs: list[CommunicatorLog] = []
        self.logs: list[CommunicatorLog] = []
        self._timeline = timeline
        self._progress = progress
        self._pace = plan.pace
        self._stuck_at = stuck_at
        self._step = plan.layout.step
        self._join(plan.layout.of(rank))
        self._members_at: list[Sequence[int]] = [log.communicator.members for log in self._log_at]
        self._run_ahead = run_ahead_operations(plan)
        self._started_seconds = 0.0

    def start(self, now_seconds: float) -> None:
        """Start the schedule at ``now_seconds`` of any monotonic clock."""
        self._started_seconds = now_seconds

    def advance(self, now_seconds: float, end_operation: int | None) -> None:
        """Complete operations at which all ranks arrived, then arrive at due operations, up to ``end_operation``."""
        while self.completed < self.arrived and self._progress.all_arrived(
            self._members_at[self.completed % len(self._step)], self.completed + 1
        ):
            self._complete()
        arrived = self.arrived
        while self._may_arrive(end_operation) and self._due(now_seconds):
            self.arrived += 1
        if self.arrived != arrived:
            self._progress.show(self.rank, self.arrived)

    def recreate(self) -> None:
        """Replace all communicators by new communicators of the same members, which count operations from 0."""
        self.past_logs += self.logs
        self._join([log.communicator.recreated() for log in self.logs])

    def _join(self, communicators: Sequence[SimulatedCommunicator]) -> None:
        self.logs = [CommunicatorLog(communicator, self.rank) for communicator in communicators]
        of_kind = {log.communicator.kind: log for log in self.logs}
        self._log_at = [of_kind[operation.kind] for operation in self._step]
        self._sequences: Counter[tuple[str, str]] = Counter()

    def _may_arrive(self, end_operation: int | None) -> bool:
        return (
            self.arrived < self.completed + self._run_ahead
            and self.arrived != self._stuck_at
            and (end_operation is None or self.arrived < end_operation)
        )

    def _due(self, now_seconds: float) -> bool:
        start_us, times = self._timeline.at(self.arrived)
        due_seconds = self._started_seconds + (start_us + times.arrival_us[self.rank]) * self._pace / 1e6
        behind_seconds = now_seconds - due_seconds
        if behind_seconds > CATCH_UP_SECONDS:
            self._started_seconds += behind_seconds
        return behind_seconds >= 0.0

    def _complete(self) -> None:
        index = self.completed % len(self._step)
        operation, log = self._step[index], self._log_at[index]
        _, times = self._timeline.at(self.completed)
        key = (operation.kind, operation.collective)
        # The plugin rounds the GPU's nanoseconds down and drops operations of zero microseconds.
        kernel_us = max(1, int(times.kernel_us[self.rank]))
        log.add(SimulatedRecord(operation.collective, self._sequences[key], operation.size_bytes, kernel_us))
        self._sequences[key] += 1
        self.completed += 1


def run_ahead_operations(plan: TimingPlan) -> int:
    """Return how many operations a rank can arrive at before it completes the first of them."""
    operation_us = (plan.compute_us + plan.jitter_us) * plan.pace
    return 1 + int(RUN_AHEAD_SECONDS * 1e6 / operation_us)


def orderly_end(arrived: int, run_ahead: int, step_operations: int) -> int:
    """Return the first end of a step that no rank can have passed; ``arrived``: arrivals of this rank.

    No rank can complete the world's operation at the end of the current step before this rank arrives there. So no rank
    has arrived more than ``run_ahead`` operations after that operation.
    """
    world_operation = (arrived // step_operations + 1) * step_operations - 1
    return -(-(world_operation + run_ahead) // step_operations) * step_operations
