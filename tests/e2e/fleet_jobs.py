"""A simulated job on a simulated fleet, and what may happen to it."""

from __future__ import annotations

import random

from fleets import JOB, Fleet, Node, monotonic
from ras_views import RasAgent, RasNetwork

from agent.ranks.rank.exit_status import ExitStatus

STEP_SECONDS = 2.5
"""From one collective to the next."""


class Job(Fleet):
    """A job on two nodes of three, scraped at random instants by clocks that are a little wrong.

    ``ras``: the agents ask the job's RAS threads; ``records``: it writes Inspector's records.
    """

    def __init__(
        self, seed: int, world: int = 16, age_seconds: float = 900.0, *, ras: bool = False, records: bool = True
    ) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # a test that can be repeated
        self.world = world
        self.running: dict[int, Node] = {}
        self.hanging: set[int] = set()
        """Ranks that run and do not reach the next collective."""
        self.network = RasNetwork(world)
        self.records = records
        self._steps = int(age_seconds / STEP_SECONDS)
        chance = self.chance.uniform
        super().__init__(*(Node(f"n{number}", chance(0, 4.9), chance(-0.02, 0.02)) for number in range(3)))
        for node in self.nodes if ras else ():
            node.ras = RasAgent(self.network, JOB, self.chance)
        for rank in range(world):
            self.at(-20, self._start, rank, self.home(rank), -age_seconds)
        self.every(-5, 2000, STEP_SECONDS, self._step)

    def home(self, rank: int) -> Node:
        """Where a rank runs: half of them on each of two nodes."""
        return self.nodes[rank * 2 // self.world]

    def end(self, seconds: float, rank: int, status: ExitStatus, finalized: bool = False) -> None:
        """Let a rank leave."""
        self.at(seconds, self._end, seconds, rank, status, finalized)

    def end_all(self, begin: float, spread: float, status: ExitStatus, but: tuple[int, ...] = ()) -> None:
        """Let all ranks leave within ``spread`` seconds."""
        for rank in range(self.world):
            if rank not in but:
                self.end(begin + self.chance.uniform(0, spread), rank, status)

    def agent(self, seconds: float, node: Node, up: bool, answer: float | None = 0.02) -> None:
        """Change how scrapes of a node's agent go."""
        self.at(seconds, self._agent, node, up, answer)

    def lose(self, seconds: float, node: Node, answer: float | None) -> None:
        """Let a node vanish with its ranks; ``answer``: how a scrape fails from then on."""
        self.at(seconds, self._lose, seconds, node)
        self.agent(seconds, node, up=False, answer=answer)

    def stop(self, seconds: float, rank: int, resume_seconds: float | None = None) -> None:
        """Let a rank be stopped by a signal, and go on at ``resume_seconds``."""
        self.at(seconds, self.home(rank).stop, JOB, rank)
        self.at(seconds, self.network.fall_silent, rank, monotonic(seconds))
        if resume_seconds is not None:
            self.at(resume_seconds, self.home(rank).resume, JOB, rank)
            self.at(resume_seconds, self.network.resume, rank, monotonic(resume_seconds))

    def hang(self, seconds: float, rank: int) -> None:
        """Let a rank run on without reaching the next collective."""
        self.at(seconds, self.hanging.add, rank)

    def pause(self, begin: float, end: float) -> None:
        """Let no rank begin another collective for a while."""
        for rank in range(self.world):
            self.at(begin, self.hanging.add, rank)
            self.at(end, self.hanging.remove, rank)

    def without_agent(self, node: Node) -> None:
        """Let a node be none of those that have an agent."""
        self.agent(-15.0, node, up=False, answer=None)

    def _start(self, rank: int, node: Node, start_seconds: float) -> None:
        node.start(JOB, rank, self.world, start_seconds)
        self.running[rank] = node
        self.network.join(rank, (f"10.0.0.{self.nodes.index(node)}", node.processes[(JOB, rank)].pid))

    def _end(self, seconds: float, rank: int, status: ExitStatus, finalized: bool) -> None:
        node = self.running.pop(rank, None) or self.home(rank)
        node.end(JOB, rank, status, finalized)
        self.network.fall_silent(rank, monotonic(seconds))

    def _lose(self, seconds: float, node: Node) -> None:
        for rank in [rank for rank, home in self.running.items() if home is node]:
            del self.running[rank]
            self.network.fall_silent(rank, monotonic(seconds))

    def _agent(self, node: Node, up: bool, answer: float | None) -> None:
        node.is_up, node.answer = up, answer

    def _step(self) -> None:
        """A collective completes when all ranks take part; those that can launch it and wait for the others."""
        able = self.running.keys() - self.hanging - set().union(*(node.stopped for node in self.nodes))
        for rank in able:
            self.network.launched[rank] = self._steps + 1
        if len(able) == self.world:
            self._steps += 1
            for rank, node in self.running.items() if self.records else ():
                node.progress(JOB, rank, self.world)
