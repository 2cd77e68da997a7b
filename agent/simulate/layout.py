"""Lay out the communicators of the job and the operations of a training step. Pure."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

CommunicatorKind = Literal["tp", "dp", "world"]
Collective = Literal["AllReduce", "AllGather", "ReduceScatter"]

KIB = 1024
MIB = 1024 * KIB

ID_CHARACTERS = 16
"""Inspector stores a communicator's id in 17 bytes with the final NUL (plugins/profiler/inspector, NCCL 2.28-2.30)."""


class Operation(NamedTuple):
    """A collective of a step. ``size_bytes``: message size as NCCL passes it to the profiler."""

    kind: CommunicatorKind
    collective: Collective
    size_bytes: int


STEP = (
    Operation("tp", "AllGather", 8 * MIB),
    Operation("tp", "ReduceScatter", 8 * MIB),
    Operation("tp", "AllReduce", 4 * MIB),
    Operation("tp", "AllGather", 8 * MIB),
    Operation("tp", "ReduceScatter", 8 * MIB),
    Operation("dp", "ReduceScatter", 32 * MIB),
    Operation("dp", "AllGather", 32 * MIB),
    Operation("world", "AllReduce", 16 * KIB),
)
"""A training step. The world communicator's operation comes last: all ranks end a step together."""


class SimulatedCommunicator(NamedTuple):
    """A communicator. ``members``: global ranks; a member's index is its rank in the communicator.

    ``nodes``: number of hosts of its members. ``network``: the traffic leaves the NVLink domain.
    """

    kind: CommunicatorKind
    name: str
    hash: int
    members: tuple[int, ...]
    nodes: int
    network: bool

    @property
    def id(self) -> str:
        """Return the id as Inspector writes it: ``0x`` and unpadded hex, cut to 16 characters."""
        return f"{self.hash:#x}"[:ID_CHARACTERS]

    def recreated(self) -> SimulatedCommunicator:
        """Return the next communicator of the same members. All members compute the same hash."""
        return self._replace(hash=_draw(f"{self.name}/{self.hash}"))


class Layout(NamedTuple):
    """The communicators of a job with two or more members, by kind.

    ``step``: the operations of a training step of a rank.
    """

    ranks: int
    communicators: dict[CommunicatorKind, tuple[SimulatedCommunicator, ...]]
    step: tuple[Operation, ...]

    def of(self, rank: int) -> list[SimulatedCommunicator]:
        """Return the communicators of ``rank`` in the order of creation: world, tp, dp."""
        return [
            communicator
            for group in self.communicators.values()
            for communicator in group
            if rank in communicator.members
        ]


def make_layout(ranks: int, hosts: int, tp: int, job_id: str, seed: int) -> Layout:
    """Return the layout of ``ranks`` ranks on ``hosts`` hosts.

    TP groups have ``tp`` consecutive ranks, DP groups the ranks with equal TP index. Equal arguments give equal hashes
    on every host. Communicators of one rank are left out: NCCL launches no kernel for them. Raises ValueError if the
    ranks cannot be divided evenly.
    """
    if ranks < 2 or ranks % hosts:
        raise ValueError(f"{ranks} ranks cannot be spread over {hosts} hosts (two or more ranks, evenly)")
    per_host = ranks // hosts
    if per_host % tp:
        raise ValueError(f"TP groups of {tp} do not fit into {per_host} ranks per host")

    def communicator(kind: CommunicatorKind, name: str, members: range) -> SimulatedCommunicator:
        nodes = len({rank // per_host for rank in members})
        return SimulatedCommunicator(
            kind, name, _draw(f"{job_id}/{seed}/{name}"), tuple(members), nodes, nodes > 1 or kind == "dp"
        )

    groups: dict[CommunicatorKind, tuple[SimulatedCommunicator, ...]] = {
        "world": (communicator("world", "world", range(ranks)),)
    }
    if tp > 1:
        groups["tp"] = tuple(
            communicator("tp", f"tensor_model_parallel_group_{index}", range(index * tp, (index + 1) * tp))
            for index in range(ranks // tp)
        )
    if ranks // tp > 1:
        groups["dp"] = tuple(
            communicator("dp", f"data_parallel_group_{index}", range(index, ranks, tp)) for index in range(tp)
        )
    return Layout(ranks, groups, tuple(operation for operation in STEP if operation.kind in groups))


def _draw(text: str) -> int:
    # Random hashes a str with SHA-512: the number is equal in every process and Python version.
    return random.Random(text).getrandbits(64)  # noqa: S311  # simulated, no secret
