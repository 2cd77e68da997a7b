"""Made-up NIXL-EP runs: what their nodes print, and, counted beside it, what must be known of them."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec


class MadeRank(msgspec.Struct):
    """What is true of a rank at the end of the made-up run."""

    phase: int
    ended: int | None = None
    left: str = ""
    combined_gbs: float = 0.0
    dispatch_gbs: float = 0.0
    combine_gbs: float = 0.0


class MadeRun(NamedTuple):
    """The logs by node, and the truth by rank."""

    logs: dict[int, list[str]]
    ranks: dict[int, MadeRank]


def make_run(phases: list[list[int]], ranks_per_node: int = 4, seed: int = 1) -> MadeRun:
    """Play a plan (negative ranks are killed).

    Lines of a node's ranks are shuffled where their order is open, and every third is joined to the one before it.
    """
    chance = random.Random(seed)  # noqa: S311  # not for secrets
    logs: dict[int, list[str]] = {}
    truth: dict[int, MadeRank] = {}
    alive: set[int] = set()
    for number, phase in enumerate(phases):
        listed, killed = {rank for rank in phase if rank >= 0}, {-rank for rank in phase if rank < 0}
        begin: list[tuple[int, str]] = []
        for rank in sorted(alive - listed - killed):
            begin.append((rank, f"{me(rank, ranks_per_node)} -> this rank is being removed in this phase, exiting"))
            truth[rank].left = "removed"
            alive.discard(rank)
        for place, rank in enumerate(sorted(listed - alive)):
            local = rank % ranks_per_node
            begin.append((rank, f"Process {place} -> global_rank={rank}, local_rank={local}"))
            truth[rank] = MadeRank(number)
            alive.add(rank)
        write(logs, begin, ranks_per_node)
        say(logs, alive, f"start phase {number}", ranks_per_node)
        for rank in alive:
            truth[rank].phase = number
        write(logs, play(alive, killed, truth, chance), ranks_per_node)
        survivors = alive - killed
        if lost := killed & alive:
            names = ", ".join(map(str, sorted(lost)))
            say(logs, survivors, f"detected rank failures: {{{names}}}, cleaning up...", ranks_per_node)
        say(logs, survivors, f"end phase {number}", ranks_per_node)
        for rank in survivors:
            truth[rank].ended = number
        for rank in killed & alive:
            truth[rank].left = "killed"
        alive = survivors
    say(logs, alive, "done", ranks_per_node)
    for rank in alive:
        truth[rank].left = "done"
    joined = {node: joined_lines(lines, chance) for node, lines in logs.items()}
    return MadeRun(joined, truth)


def me(rank: int, ranks_per_node: int) -> str:
    """How a rank names itself."""
    return f"global_rank={rank}, local_rank={rank % ranks_per_node}"


def say(logs: dict[int, list[str]], ranks: set[int], text: str, ranks_per_node: int) -> None:
    """Have each of these ranks print a text."""
    write(logs, [(rank, f"{me(rank, ranks_per_node)} -> {text}") for rank in sorted(ranks)], ranks_per_node)


def play(ranks: set[int], killed: set[int], truth: dict[int, MadeRank], chance: random.Random) -> list[tuple[int, str]]:
    """What ranks print between the start and the end of a phase."""
    lines = []
    for rank in ranks:
        if rank in killed:
            lines.append((rank, f"[rank {rank}] Killing rank during dispatch/combine"))
            continue
        combined, dispatch, combine = (round(chance.uniform(10, 90), 2) for _ in range(3))
        mean = round(chance.uniform(20, 400), 1)
        found = truth[rank]
        found.combined_gbs, found.dispatch_gbs, found.combine_gbs = combined, dispatch, combine
        lines.append(
            (
                rank,
                f"[rank {rank}] Dispatch + combine bandwidth: {combined} GB/s, avg_t={mean} us, min_t={mean - 3} us, "
                f"max_t={mean + 9} us",
            )
        )
        lines.append(
            (
                rank,
                f"[rank {rank}] Dispatch bandwidth: {dispatch:.2f} GB/s, avg_t=40.5 us | Combine bandwidth: "
                f"{combine:.2f} GB/s, avg_t=43.2 us",
            )
        )
    chance.shuffle(lines)
    return lines


def write(logs: dict[int, list[str]], lines: list[tuple[int, str]], ranks_per_node: int) -> None:
    """Add the lines of ranks to the logs of their nodes."""
    for rank, line in lines:
        logs.setdefault(rank // ranks_per_node, []).append(line)


def joined_lines(lines: list[str], chance: random.Random) -> list[str]:
    """Lines of which a third have lost the end that parts them from the one before."""
    found: list[str] = []
    for line in lines:
        if found and not chance.randrange(3) and not line.startswith("Process"):
            found[-1] += line
        else:
            found.append(line)
    return found
