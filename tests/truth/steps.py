"""The steps that situations consist of. ``ranks``: a number, a slice of the job's ranks, or all that run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from signal import SIGTERM

from play import Play, Step
from site_of_agents import Rank

ALL = slice(None)
RUNNING = None
N0 = slice(4)
N1 = slice(4, 8)
"""The ranks of the first and of the second node, with four ranks each."""


def of(play: Play, ranks: int | slice | None) -> list[Rank]:
    """The ranks that a step names."""
    if ranks is None:
        return play.job.running()
    return play.ranks[ranks] if isinstance(ranks, slice) else [play.ranks[ranks]]


def in_steps(play: Play, ranks: int | slice | None, every: float) -> Iterator[Rank]:
    """The ranks, one after the other, with a pause between two."""
    for number, rank in enumerate(of(play, ranks)):
        if every and number:
            play.run(every)
        yield rank


def wait(seconds: float) -> Step:
    """Time passes."""
    return lambda play: play.run(seconds)


def exits(
    ranks: int | slice | None,
    signal: int = 0,
    code: int = 0,
    *,
    oom: bool = False,
    known: bool = True,
    every: float = 0,
) -> Step:
    """Ranks end, all at once or one after the other, ``every`` seconds apart."""

    def step(play: Play) -> None:
        for rank in in_steps(play, ranks, every):
            rank.exit(signal, code, oom=oom, known=known)

    return step


def starts(ranks: int | slice = ALL, node: int | None = None) -> Step:
    """Ranks start again, on another node if one is named."""

    def step(play: Play) -> None:
        for rank in of(play, ranks):
            rank.start(None if node is None else play.nodes[node])

    return step


def tears_down(
    seconds: float = 0.5, kill_wait: float = 30.0, stay: Iterable[int] = (), kill: Iterable[int] | None = None
) -> Step:
    """The launcher ends the others (see ``Job.tear_down``)."""
    return lambda play: play.job.tear_down(seconds, kill_wait, stay, kill)


def ended(state: str, *nodes: int) -> Step:
    """The scheduler says how the job ended, on these nodes or on all."""
    return lambda play: play.job.ended(state, [play.nodes[number] for number in nodes])


def anew(used: int, allowed: int) -> Step:
    """Torchrun, which has restarted ``used`` times, restarts all ranks. After (0, n) the job runs for 11 minutes."""

    def step(play: Play) -> None:
        for rank in play.job.running():
            rank.exit(SIGTERM)
        play.job.restarts = (used, allowed)
        for rank in play.ranks:
            rank.start()
        if used == 0:
            play.run(660.0)

    return step


def job(**state: object) -> Step:
    """The job ``progresses`` or does not any more, or has another ``world``."""
    return lambda play: vars(play.job).update(state)


HANG = job(progresses=False)


def node(*numbers: int, **state: bool) -> Step:
    """Nodes answer or not, refuse, are targets, are doubled or have an old agent from now on."""

    def step(play: Play) -> None:
        for number in numbers:
            vars(play.nodes[number]).update(state)

    return step


def misses(*numbers: int, seconds: float = 6.0) -> tuple[Step, ...]:
    """Scrapes of these nodes fail for a while; the agents go on."""
    return (node(*numbers, answers=False), wait(seconds), node(*numbers, answers=True))


def loses_power(*numbers: int) -> Step:
    """Machines stop at once."""

    def step(play: Play) -> None:
        for number in numbers:
            play.nodes[number].lose_power()

    return step


def boots(number: int, *, disk: bool = True) -> Step:
    """A machine starts again, with the files of its disk or without."""
    return lambda play: play.nodes[number].boot(disk=disk)


def agent_restarts(number: int, *, checkpoint: bool = True) -> Step:
    """An agent is killed and another one starts, with its checkpoint or without."""
    return lambda play: play.nodes[number].restart_agent(checkpoint=checkpoint)


def loses_scrapes(share: float) -> Step:
    """This share of all scrapes fails from now on."""
    return lambda play: vars(play.site).update(lost_share=share)


def borrows(ranks: int = 2, world: int | None = None) -> Step:
    """Another user starts processes on the third node that claim to be ranks of the job."""
    return lambda play: play.borrow(2, ranks, world)


def borrower_exits(rank: int, signal: int) -> Step:
    """One of the other user's processes ends."""
    return lambda play: play.borrowers[rank].exit(signal)
