"""The steps of situations. ``ranks``: a number, a slice of the job's ranks, or None for all that run."""

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
    """Return the ranks of a step."""
    if ranks is None:
        return play.job.running()
    return play.ranks[ranks] if isinstance(ranks, slice) else [play.ranks[ranks]]


def in_steps(play: Play, ranks: int | slice | None, every: float) -> Iterator[Rank]:
    """Yield the ranks one after the other, with a pause between two."""
    for number, rank in enumerate(of(play, ranks)):
        if every and number:
            play.run(every)
        yield rank


def wait(seconds: float) -> Step:
    """Let time pass."""
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
    """End ranks, all at once or one after the other, ``every`` seconds apart."""

    def step(play: Play) -> None:
        for rank in in_steps(play, ranks, every):
            rank.exit(signal, code, oom=oom, known=known)

    return step


def starts(ranks: int | slice = ALL, node: int | None = None) -> Step:
    """Start ranks again, on ``node`` if given."""

    def step(play: Play) -> None:
        for rank in of(play, ranks):
            rank.start(None if node is None else play.nodes[node])

    return step


def tears_down(
    seconds: float = 0.5, kill_wait: float = 30.0, stay: Iterable[int] = (), kill: Iterable[int] | None = None
) -> Step:
    """Let the launcher end the other ranks (see ``Job.tear_down``)."""
    return lambda play: play.job.tear_down(seconds, kill_wait, stay, kill)


def ended(state: str, *nodes: int) -> Step:
    """Record the scheduler's state of the job's end, on these nodes or on all."""
    return lambda play: play.job.ended(state, [play.nodes[number] for number in nodes])


def anew(used: int, allowed: int) -> Step:
    """Let torchrun, after ``used`` restarts, restart all ranks. If ``used`` is 0, the job then runs for 11 minutes."""

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
    """Change fields of the job: ``progresses`` or ``world``."""
    return lambda play: vars(play.job).update(state)


HANG = job(progresses=False)


def node(*numbers: int, **state: bool) -> Step:
    """Change fields of nodes: whether they reply, refuse, are targets, are scraped twice or have an old agent."""

    def step(play: Play) -> None:
        for number in numbers:
            vars(play.nodes[number]).update(state)

    return step


def misses(*numbers: int, seconds: float = 6.0) -> tuple[Step, ...]:
    """Let scrapes of these nodes fail for some seconds; the agents keep running."""
    return (node(*numbers, answers=False), wait(seconds), node(*numbers, answers=True))


def loses_power(*numbers: int) -> Step:
    """Stop machines at once."""

    def step(play: Play) -> None:
        for number in numbers:
            play.nodes[number].lose_power()

    return step


def boots(number: int, *, disk: bool = True) -> Step:
    """Boot a machine, with or without the files of its disk."""
    return lambda play: play.nodes[number].boot(disk=disk)


def agent_restarts(number: int, *, checkpoint: bool = True) -> Step:
    """Kill an agent and start another one, with or without its checkpoint."""
    return lambda play: play.nodes[number].restart_agent(checkpoint=checkpoint)


def loses_scrapes(share: float) -> Step:
    """Let this share of all scrapes fail."""
    return lambda play: vars(play.site).update(lost_share=share)


def borrows(ranks: int = 2, world: int | None = None) -> Step:
    """Let another user start processes on the third node that claim to be ranks of the job."""
    return lambda play: play.borrow(2, ranks, world)


def borrower_exits(rank: int, signal: int) -> Step:
    """End one of the other user's processes."""
    return lambda play: play.borrowers[rank].exit(signal)
