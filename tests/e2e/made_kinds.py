"""What may go wrong in a made-up job, by kind, and what is true of it: who is to be named, and who may not be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from made_jobs import Habits, Job
from made_layouts import Layout, Shape, Shares, make_layout
from made_lines import Losses
from made_troubles import Pause, SlowLinks, SlowWhile, Straggler, Troubles, Turns, Uneven

ONSET_SECONDS = 420
SECONDS = 1500
"""When a rank begins to be late, and how long such a job is looked at: long enough for its links to be judged, too."""
LINK_ONSET_SECONDS = 900
LINK_SECONDS = 2100
"""The same where a link gets slow: it is judged by what it was."""
NEVER = frozenset[int]()


class Truth(NamedTuple):
    """Who is to be named: ``late`` ranks, from ``late_onset`` on, and ``slow`` communicators or a ``pair`` of ranks.

    Links are slow from ``link_onset`` on (both in seconds since the job's begin). ``behind``: ranks that the others do
    wait for, but because of the slow link that they are behind. ``thin``: too few records may be told of instead.
    """

    late: frozenset[int] = NEVER
    slow: frozenset[str] = frozenset()
    pair: frozenset[int] = NEVER
    late_onset: float = ONSET_SECONDS
    link_onset: float = LINK_ONSET_SECONDS
    behind: frozenset[int] = NEVER
    thin: bool = False


class Made(NamedTuple):
    """A job with known truth; ``what`` says it to people. ``named``: its plugin is one that writes `comm_name`."""

    kind: str
    seed: int
    what: str
    layout: Layout
    habits: Habits
    troubles: Callable[[], Troubles]
    truth: Truth
    losses: Losses = Losses()
    named: bool = True

    @property
    def seconds(self) -> int:
        """Return how long it is looked at."""
        return LINK_SECONDS if self.kind in LINK_KINDS else SECONDS

    def job(self) -> Job:
        """Return the job at its begin."""
        return Job(self.layout, self.habits, self.troubles(), self.seed)


class _Dice:
    """Chooses all that is left open, by the seed."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.seed = kind, seed
        self.chance = random.Random(f"{kind} {seed}")  # noqa: S311  the same job for a seed every time

    def made(
        self,
        what: str,
        layout: Layout,
        troubles: Callable[[], Troubles] = Troubles,
        truth: Truth = Truth(),  # noqa: B008  immutable
        *,
        losses: Losses = Losses(),  # noqa: B008  immutable
        jitter: float | None = None,
    ) -> Made:
        """Return the job, of ranks that are about alike."""
        usual = self.chance.uniform(0.003, 0.015)
        factors = tuple(1.0 + self.chance.uniform(-0.004, 0.004) for _ in range(layout.shape.world))
        habits = Habits(usual if jitter is None else jitter, factors)
        return Made(self.kind, self.seed, what, layout, habits, troubles, truth, losses, named=not losses.one_slot)

    def layout(self, *shapes: Shape, step_seconds: float | None = None) -> Layout:
        """Return a layout of one of these shapes, else of any without a pipeline."""
        chance = self.chance
        shape = chance.choice(shapes or SHAPES)
        shares = Shares(chance.uniform(0.02, 0.05), chance.uniform(0.05, 0.12), chance.uniform(0.04, 0.08))
        seconds = step_seconds or chance.choice((0.5, 1.0, 2.0, 3.0, 5.0))
        return make_layout(shape, shares, seconds, chance.uniform(2.0, 4.0), chance)

    def rank(self, layout: Layout) -> int:
        """Return any rank."""
        return self.chance.randrange(layout.shape.world)


SHAPES = (
    Shape(1, 4, 1), Shape(1, 4, 2), Shape(1, 8, 4), Shape(2, 2, 1), Shape(2, 2, 2), Shape(2, 4, 2), Shape(2, 4, 4),
    Shape(2, 8, 4), Shape(2, 8, 8), Shape(4, 2, 2), Shape(4, 4, 4), Shape(4, 8, 8),
)  # fmt: skip
LIKE_SHAPES = (Shape(2, 4, 4), Shape(2, 8, 4), Shape(2, 8, 8), Shape(4, 4, 4))
"""With at least four DP communicators over the network."""
PIPELINES = (Shape(2, 2, 2, pipeline=True), Shape(2, 4, 2, pipeline=True), Shape(2, 4, 4, pipeline=True))


def _healthy(dice: _Dice) -> Made:
    layout = dice.layout(*SHAPES, *PIPELINES)
    return dice.made("nothing is wrong", layout)


def _straggler(dice: _Dice) -> Made:
    layout = dice.layout()
    share, spread = dice.chance.uniform(0.05, 0.4), dice.chance.random() < 0.5
    trouble = Straggler(dice.rank(layout), share, ONSET_SECONDS, spread)
    how = "before each operation" if spread else "at each step's begin"
    what = f"rank {trouble.rank} late by {share:.0%} {how}"
    return dice.made(what, layout, lambda: Troubles((trouble,)), Truth(late=frozenset({trouble.rank})))


def _late_stage(dice: _Dice) -> Made:
    layout = dice.layout(*PIPELINES)
    trouble = Straggler(dice.rank(layout), dice.chance.uniform(0.08, 0.4), ONSET_SECONDS, spread=False)
    what = f"rank {trouble.rank} of a pipeline late by {trouble.share:.0%} at each step's begin"
    return dice.made(what, layout, lambda: Troubles((trouble,)), Truth(late=frozenset({trouble.rank})))


def _turns(dice: _Dice) -> Made:
    seconds = dice.chance.choice((0.5, 5.0, 20.0, 60.0))
    layout = dice.layout(step_seconds=dice.chance.choice([each for each in (0.5, 1.0, 2.0) if each <= seconds]))
    order = list(range(layout.shape.world))
    dice.chance.shuffle(order)
    share = dice.chance.uniform(0.1, 0.4)
    trouble = Turns(tuple(order), share, ONSET_SECONDS, seconds)
    return dice.made(f"each late in turn by {share:.0%} for {seconds:g} s", layout, lambda: Troubles((trouble,)))


def _hiccup(dice: _Dice) -> Made:
    layout, seconds = dice.layout(), dice.chance.uniform(1.0, 60.0)
    rank = dice.rank(layout)
    if dice.chance.random() < 0.5:
        what = f"rank {rank} stands still once for {seconds:.0f} s"
        return dice.made(what, layout, lambda: Troubles((Pause(rank, ONSET_SECONDS, seconds),)))
    share = dice.chance.uniform(0.1, 0.4)
    slow = SlowWhile(rank, share, ONSET_SECONDS, seconds)
    return dice.made(f"rank {rank} late by {share:.0%} for {seconds:.0f} s", layout, lambda: Troubles((slow,)))


def _imbalance(dice: _Dice) -> Made:
    layout = dice.layout()
    if dice.chance.random() < 0.5:
        share = dice.chance.uniform(0.005, 0.02)
        rank = dice.rank(layout)
        slow = Straggler(rank, share, 0.0, spread=False)
        return dice.made(f"rank {rank} late by {share:.1%}: too little", layout, lambda: Troubles((slow,)))
    share = dice.chance.uniform(0.03, min(0.2, 0.02 * layout.shape.world))
    uneven = Uneven(layout.shape.world, share)
    return dice.made(f"any rank late by {share:.0%}, another each step", layout, lambda: Troubles((uneven,)))


def _dp_over_network(layout: Layout) -> list[int]:
    groups = enumerate(layout.communicators)
    return [number for number, each in groups if each.kind == "dp" and each.nodes > 1]


def _slow(dice: _Dice, layout: Layout, onset: float, period: float | None = None) -> tuple[SlowLinks, Truth]:
    """Choose one communicator over the network, or all, to get slow."""
    numbers = _dp_over_network(layout)
    if dice.chance.random() < 0.5:
        numbers = [dice.chance.choice(numbers)]
    slow = SlowLinks(frozenset(numbers), 2.5, onset, period)
    groups = [layout.communicators[number] for number in numbers]
    one_of_several = len(numbers) < len(_dp_over_network(layout))
    behind = frozenset(rank for each in groups for rank in each.members) if one_of_several else NEVER
    return slow, Truth(slow=frozenset(each.comm for each in groups), link_onset=onset, behind=behind)


_OVER_NETWORK = tuple(shape for shape in SHAPES if shape.nodes > 1)


def _slow_fabric(dice: _Dice) -> Made:
    layout = dice.layout(*_OVER_NETWORK)
    slow, truth = _slow(dice, layout, LINK_ONSET_SECONDS)
    what = f"{len(slow.numbers)} DP communicators fall to 40 %"
    return dice.made(what, layout, lambda: Troubles(slowness=(slow,)), truth)


def _masked(dice: _Dice) -> Made:
    layout = dice.layout(*_OVER_NETWORK)
    slow, truth = _slow(dice, layout, LINK_ONSET_SECONDS)
    what = f"{len(slow.numbers)} DP communicators fall to 40 %"
    if dice.chance.random() < 0.5:
        jitter = dice.chance.uniform(0.1, 0.25)
        what += f"; arrivals vary by {jitter:.0%}"
        return dice.made(what, layout, lambda: Troubles(slowness=(slow,)), truth, jitter=jitter)
    share = dice.chance.uniform(0.1, 0.3)
    late = Straggler(dice.rank(layout), share, 0.0, spread=False)
    what += f"; rank {late.rank} late by {share:.0%} all along"
    truth = truth._replace(late=frozenset({late.rank}), late_onset=0.0)
    return dice.made(what, layout, lambda: Troubles((late,), (slow,)), truth)


def _slow_from_start(dice: _Dice) -> Made:
    layout = dice.layout(*LIKE_SHAPES)
    number = dice.chance.choice(_dp_over_network(layout))
    group = layout.communicators[number]
    slow = SlowLinks(frozenset({number}), 2.5, 0.0)
    truth = Truth(slow=frozenset({group.comm}), link_onset=0.0, behind=frozenset(group.members))
    what = f"one of {len(_dp_over_network(layout))} DP communicators has 40 % from the start"
    return dice.made(what, layout, lambda: Troubles(slowness=(slow,)), truth)


def _half_time(dice: _Dice) -> Made:
    layout = dice.layout(*_OVER_NETWORK)
    minutes = dice.chance.choice((1, 2, 5))
    slow, truth = _slow(dice, layout, LINK_ONSET_SECONDS, minutes * 60.0)
    what = f"{len(slow.numbers)} DP communicators at 40 % for {minutes} min, well for {minutes} min, in turn"
    return dice.made(what, layout, lambda: Troubles(slowness=(slow,)), truth)


def _thin(dice: _Dice) -> Made:
    layout = dice.layout()
    share = dice.chance.uniform(0.05, 0.4)
    late = Straggler(dice.rank(layout), share, ONSET_SECONDS, dice.chance.random() < 0.5)
    truth = Truth(late=frozenset({late.rank}), thin=True)
    how = dice.chance.choice(("one", "all", "slot"))
    what = f"rank {late.rank} late by {share:.0%}"
    if how == "slot":
        what += "; 2.28, one slot, 1 s"
        return dice.made(what, layout, lambda: Troubles((late,)), truth, losses=Losses(one_slot=True))
    lost = 0.5 if how == "one" else dice.chance.uniform(0.5, 0.95)
    ranks = {dice.rank(layout)} if how == "one" else set(range(layout.shape.world))
    what += f"; {lost:.0%} of the records of {f'rank {min(ranks)}' if how == 'one' else 'all ranks'} lost"
    truth = truth._replace(thin=how == "all")
    return dice.made(
        what, layout, lambda: Troubles((late,)), truth, losses=Losses(lost, frozenset(ranks), told=how == "all")
    )


def _slow_pair(dice: _Dice) -> Made:
    layout = dice.layout(*PIPELINES)
    number = dice.chance.choice([number for number, each in enumerate(layout.communicators) if each.kind == "pp"])
    members = frozenset(layout.communicators[number].members)
    slow = SlowLinks(frozenset({number}), 3.0, LINK_ONSET_SECONDS)
    truth = Truth(pair=members, behind=members)
    what = f"sends and receives of ranks {sorted(members)} take three times as long"
    return dice.made(what, layout, lambda: Troubles(slowness=(slow,)), truth)


KINDS: dict[str, Callable[[_Dice], Made]] = {
    "healthy": _healthy,
    "straggler": _straggler,
    "late stage": _late_stage,
    "turns": _turns,
    "hiccup": _hiccup,
    "imbalance": _imbalance,
    "thin records": _thin,
    "slow from the start": _slow_from_start,
    "slow fabric": _slow_fabric,
    "masked link": _masked,
    "half-time link": _half_time,
    "slow pair": _slow_pair,
}
LINK_KINDS = frozenset({"slow from the start", "slow fabric", "masked link", "half-time link", "slow pair"})


def make(kind: str, seed: int) -> Made:
    """Return the job of this kind and seed."""
    return KINDS[kind](_Dice(kind, seed))
