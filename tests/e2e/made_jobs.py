"""Made-up jobs: when each rank arrives at each operation and how long its kernel runs, step by step, seeded.

A kernel ends when all members have arrived and the transfer is done; its time is its own wait and the transfer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from made_layouts import Layout, Operation, transfer_seconds
from made_lines import Done, Losses, Passes, Plugin, Written
from made_troubles import Troubles

TRANSFER_JITTER = 0.05
"""A transfer takes up to this share longer."""
OPPOSITE = {"Send": "Recv", "Recv": "Send"}
LEAST_COMPUTE = 0.1
"""No rank computes in less than this share of the usual time."""


class Habits(NamedTuple):
    """How unlike the ranks of a healthy job are.

    ``jitter``: standard deviation of the time before an operation, as a share of it. ``factors``: how long each rank
    always takes, 1 on average.
    """

    jitter: float
    factors: tuple[float, ...]


class Job:
    """One job; ``until`` runs it on.

    ``waited``: for how many seconds the others of a communicator (by its number) waited for a rank alone.
    """

    def __init__(self, layout: Layout, habits: Habits, troubles: Troubles, seed: int) -> None:
        self.layout = layout
        self.waited: Counter[tuple[int, int]] = Counter()
        self._habits = habits
        self._troubles = troubles
        self._chance = random.Random(f"{seed} times")  # noqa: S311  the same job every time
        self._clock = [0.0] * layout.shape.world
        self._sequences: Counter[tuple[int, int | str]] = Counter()
        self._of_kind = {
            kind: [(number, each) for number, each in enumerate(layout.communicators) if each.kind == kind]
            for kind in ("tp", "dp", "pp")
        }
        self._transfer_seconds = {
            (operation, number): transfer_seconds(operation.collective, operation.size_bytes, each)
            for operation in layout.step
            for number, each in self._of_kind[operation.kind]
        }

    def until(self, seconds: float) -> list[Done]:
        """Return the operations of the next steps, until every rank is past this time since the job's begin."""
        done: list[Done] = []
        while min(self._clock) < seconds:
            done += self._next_step()
        return done

    def _next_step(self) -> list[Done]:
        layout, chance = self.layout, self._chance
        now = min(self._clock)
        first = [0.0] * layout.shape.world
        each_time = [0.0] * layout.shape.world
        for lateness in self._troubles.lateness:
            for rank, seconds, spread in lateness(now, layout.step_seconds, chance):
                if spread:
                    each_time[rank] += seconds / len(layout.step)
                else:
                    first[rank] += seconds
        done: list[Done] = []
        for operation in layout.step:
            arrivals = self._arrivals(operation.compute_seconds)
            arrivals = [sum(parts) for parts in zip(arrivals, first, each_time, strict=True)]
            first = [0.0] * layout.shape.world
            self._clock = arrivals
            for number, _ in self._of_kind[operation.kind]:
                done += self._operate(operation, number)
        return done

    def _arrivals(self, compute_seconds: float) -> list[float]:
        jitter, normal = self._habits.jitter, self._chance.gauss
        return [
            clock + compute_seconds * max(LEAST_COMPUTE, factor + normal(0.0, jitter))
            for clock, factor in zip(self._clock, self._habits.factors, strict=True)
        ]

    def _operate(self, operation: Operation, number: int) -> list[Done]:
        """Let one communicator operate; its members' clocks show when they arrived, then when it ended."""
        communicator = self.layout.communicators[number]
        clock = self._clock
        arrivals = [clock[rank] for rank in communicator.members]
        last = max(arrivals)
        took = self._transfer_seconds[operation, number] * (1.0 + TRANSFER_JITTER * self._chance.random())
        for slowness in self._troubles.slowness:
            took *= slowness(number, last)
        end = last + took
        self.waited[number, communicator.members[arrivals.index(last)]] += last - sorted(arrivals)[-2]
        end_us = int(end * 1e6)
        done: list[Done] = []
        for place, rank in enumerate(communicator.members):
            kernel_us = max(1, int((end - clock[rank]) * 1e6))
            clock[rank] = end
            collective, sequence = operation.collective, self._sequences[number, operation.collective]
            if operation.kind == "pp":
                collective = collective if place == 0 else OPPOSITE[collective]
                sequence = self._sequences[number, place] = self._sequences[number, place] + 1
            done.append(Done(end_us, rank, number, place, collective, sequence, operation.size_bytes, kernel_us))
        if operation.kind != "pp":
            self._sequences[number, operation.collective] += 1
        return done


class Recorded:
    """A job and what its plugins write, second by second."""

    def __init__(self, job: Job, losses: Losses, plugin: Plugin, epoch_us: int, seed: int) -> None:
        self._job = job
        self._plugin = plugin
        self._epoch_us = epoch_us
        chance = random.Random(f"{seed} looks")  # noqa: S311  the same looks every time
        self._passes = Passes(losses, job.layout.shape.world, chance)
        self._pending: list[tuple[int, Done, int]] = []

    def next_second(self, second: int) -> Iterator[Written]:
        """Yield what is written in this second since the job's begin; of each rank in order of time."""
        until_us = (second + 1) * 1_000_000
        self._pending += self._passes.written(self._job.until(second + 1), until_us)
        later: list[tuple[int, Done, int]] = []
        for at_us, done, dropped in self._pending:
            if at_us < until_us:
                yield Written(at_us, done.rank, self._plugin.lines(done, self._epoch_us + at_us, dropped))
            else:
                later.append((at_us, done, dropped))
        self._pending = later
