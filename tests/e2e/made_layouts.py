"""The communicators of a made-up job, and the operations of one of its training steps. Pure and seeded.

Ranks count up node by node. Tensor parallel (TP) groups lie inside a node, data parallel (DP) groups hold the ranks of
equal place in their TP groups, and pipeline (PP) pairs join a rank of the first half of the nodes to one of the second.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Kind = Literal["tp", "dp", "pp"]

NVLINK_BYTES_PER_SECOND = 350e9
NETWORK_BYTES_PER_SECOND = 45e9
LATENCY_SECONDS = 30e-6
SIZE_STEP_BYTES = 4096
LARGE = 1.6
"""Where operations come in two sizes the larger takes so much of the mean time, the smaller the rest of twice that."""
NAMES = {"tp": "tensor_model_parallel_group", "dp": "data_parallel_group", "pp": "pipeline_model_parallel_group"}


class Shape(NamedTuple):
    """How many nodes, ranks of each, ranks of a TP group; and whether the nodes are two stages of a pipeline."""

    nodes: int
    ranks_per_node: int
    tp: int
    pipeline: bool = False

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.ranks_per_node


class Communicator(NamedTuple):
    """Its members are global ranks, in the order of their ranks in it; ``comm`` is its id as labels have it."""

    comm: str
    name: str
    kind: Kind
    members: tuple[int, ...]
    nodes: int

    @property
    def bytes_per_second(self) -> float:
        """Return the bus bandwidth of its links when they are well."""
        return NETWORK_BYTES_PER_SECOND if self.nodes > 1 else NVLINK_BYTES_PER_SECOND


class Operation(NamedTuple):
    """What all communicators of a kind do next, after ``compute_seconds`` of each rank.

    ``collective`` of a PP pair is what its first rank does, Send or Recv; the other does the opposite.
    """

    kind: Kind
    collective: str
    size_bytes: int
    compute_seconds: float


class Layout(NamedTuple):
    """A job: its shape, its communicators, the operations of a step, and how long a healthy step takes."""

    shape: Shape
    communicators: tuple[Communicator, ...]
    step: tuple[Operation, ...]
    step_seconds: float

    def of_kind(self, kind: Kind) -> list[Communicator]:
        """Return the communicators of a kind, in order."""
        return [each for each in self.communicators if each.kind == kind]


class Shares(NamedTuple):
    """The shares of a healthy step that transfers of each kind take."""

    tp: float
    dp: float
    pp: float


def bus_bytes(collective: str, size_bytes: int, ranks: int) -> float:
    """Return what one rank's links carry for a message of ``size_bytes``, which is what the transfer's time is of."""
    if collective == "AllReduce":
        return 2.0 * size_bytes * (ranks - 1) / ranks
    if collective in ("AllGather", "ReduceScatter"):
        return float(size_bytes * (ranks - 1))
    return float(size_bytes)


def transfer_seconds(collective: str, size_bytes: int, communicator: Communicator) -> float:
    """Return how long the transfer takes on healthy links, once all members are there."""
    moved = bus_bytes(collective, size_bytes, len(communicator.members))
    return LATENCY_SECONDS + moved / communicator.bytes_per_second


def communicators(shape: Shape, chance: random.Random) -> tuple[Communicator, ...]:
    """Make the groups of a shape; those of a single rank do not exist."""
    stages = 2 if shape.pipeline else 1
    stage_size = shape.world // stages
    groups: list[tuple[Kind, tuple[int, ...]]] = [
        ("tp", tuple(range(first, first + shape.tp))) for first in range(0, shape.world, shape.tp)
    ]
    for stage in range(stages):
        ranks = range(stage * stage_size, (stage + 1) * stage_size)
        groups += [("dp", tuple(ranks[place :: shape.tp])) for place in range(shape.tp)]
    if shape.pipeline:
        groups += [("pp", (rank, rank + stage_size)) for rank in range(stage_size)]
    named = chance.random() < 0.5  # PyTorch gives no names
    made: list[Communicator] = []
    seen = dict.fromkeys(NAMES, 0)
    for kind, members in groups:
        if len(members) < 2:
            continue
        name = f"{NAMES[kind]}_{seen[kind]}" if named else "unknown"
        seen[kind] += 1
        nodes = len({rank // shape.ranks_per_node for rank in members})
        comm = f"{chance.randrange(1, 16):x}{chance.getrandbits(52):013x}"
        made.append(Communicator(comm, name, kind, members, nodes))
    return tuple(made)


def make_layout(
    shape: Shape, shares: Shares, step_seconds: float, operations_per_second: float, chance: random.Random
) -> Layout:
    """Plan a step of ``step_seconds`` with so many operations of each rank per second, at least one of each kind."""
    groups = communicators(shape, chance)
    kinds: list[Kind] = [kind for kind in ("tp", "dp", "pp") if any(each.kind == kind for each in groups)]
    wanted = max(len(kinds) + 1, round(step_seconds * operations_per_second))
    count: dict[Kind, int] = dict.fromkeys(kinds, 1)
    if "pp" in count:
        count["pp"] = 2
    if "dp" in count:
        count["dp"] = max(1, round(wanted * (0.4 if "tp" in count else 1.0)))
    if "tp" in count:
        count["tp"] = max(1, wanted - sum(count[kind] for kind in kinds if kind != "tp"))
    total = sum(count.values())
    transfers = sum(shares._asdict()[kind] for kind in kinds) * step_seconds
    compute = (step_seconds - transfers) / total
    step: list[Operation] = []
    for kind in kinds:
        each_seconds = shares._asdict()[kind] * step_seconds / count[kind]
        like = next(each for each in groups if each.kind == kind)
        for number in range(count[kind]):
            collective = _collective(kind, number)
            uneven = count[kind] % 4 == 0  # both collectives of a kind come in two sizes
            seconds = each_seconds * ((LARGE, 2.0 - LARGE)[number // 2 % 2] if uneven else 1.0)
            per_byte = bus_bytes(collective, SIZE_STEP_BYTES, len(like.members)) / SIZE_STEP_BYTES
            size = max(0.0, seconds - LATENCY_SECONDS) * like.bytes_per_second / per_byte
            size_bytes = max(4, round(size / SIZE_STEP_BYTES)) * SIZE_STEP_BYTES
            step.append(Operation(kind, collective, size_bytes, compute))
    return Layout(shape, groups, _ordered(step), step_seconds)


def _collective(kind: Kind, number: int) -> str:
    if kind == "pp":
        return ("Send", "Recv")[number % 2]  # activations go on, gradients come back
    return ("AllGather", "ReduceScatter")[number % 2] if number % 5 != 4 else "AllReduce"


def _ordered(step: list[Operation]) -> tuple[Operation, ...]:
    """Half of TP, the activations, the other half, the gradients; then DP."""
    tp = [each for each in step if each.kind == "tp"]
    pp = [each for each in step if each.kind == "pp"]
    dp = [each for each in step if each.kind == "dp"]
    half = len(tp) // 2
    return (*tp[:half], *pp[:1], *tp[half:], *pp[1:], *dp)
