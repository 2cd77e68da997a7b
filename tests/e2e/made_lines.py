"""Lines of Inspector, byte for byte as its plugins 2.30.7 and 2.28.9 write them; and what a plugin does not write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from made_layouts import Communicator

PASS_US = 500
"""How often the plugin 2.30 looks for completed operations."""
SLOT_PASS_US = 1_000_000
"""How often the plugin 2.28 of these jobs does: what was completed in between but the last has no record."""


class Done(NamedTuple):
    """An operation as one rank's GPU saw it: its end in us since the job's begin, its time, its number from 0 (PP: 1).

    ``place`` is the rank in the communicator, ``number`` that of the communicator in the layout.
    """

    end_us: int
    rank: int
    number: int
    place: int
    collective: str
    sequence: int
    size_bytes: int
    kernel_us: int


class Written(NamedTuple):
    """A line, the rank whose process writes it, and when, in us since the job's begin."""

    time_us: int
    rank: int
    line: str


class Plugin:
    """Formats records: of processes with these ``hosts`` and ``pids`` by global rank; ``named``: with `comm_name`."""

    def __init__(
        self, communicators: tuple[Communicator, ...], hosts: list[str], pids: list[int], *, named: bool
    ) -> None:
        self._heads: dict[tuple[int, int], tuple[str, str]] = {}
        self._ranks = [len(each.members) for each in communicators]
        revision = "v2.30.7-1" if named else "dbc86fd0"
        for number, communicator in enumerate(communicators):
            name = f'"comm_name":"{communicator.name}",' if named else ""
            for place, rank in enumerate(communicator.members):
                head = (
                    f'{{"header":{{"id":"0x{communicator.comm}",{name}"rank":{place},"n_ranks":{len(communicator.members)},'
                    f'"nnodes":{communicator.nodes}}},"metadata":{{"inspector_output_format_version":"v4.0",'
                    f'"git_rev":"{revision}","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":'
                )
                tail = f',"hostname":"{hosts[rank]}","pid":{pids[rank]}}},'
                self._heads[number, place] = (head, tail)

    def lines(self, done: Done, at_us: int, dropped: int) -> str:
        """Return what is written of an operation: its record, after what the ring dropped before it, if told."""
        if not dropped:
            return self.line(done, at_us)
        head, tail = self._heads[done.number, done.place]
        of = "p2p" if done.collective in ("Send", "Recv") else "coll"
        stats = ",".join(
            f'"{each}_records":{int(each == of)},"{each}_dropped_since_last_dump":{dropped if each == of else 0}'
            for each in ("coll", "p2p")
        )
        return f'{head}{at_us}{tail}"dump_stats":{{{stats}}}}}\n{self.line(done, at_us)}'

    def line(self, done: Done, at_us: int) -> str:
        """Return the record of an operation as it is written at ``at_us`` since the epoch."""
        head, tail = self._heads[done.number, done.place]
        ranks = self._ranks[done.number]
        if done.collective in ("Send", "Recv"):
            bandwidth = done.size_bytes / (done.kernel_us * 1e3)
            perf = (
                f'"p2p_perf":{{"p2p":"{done.collective}","p2p_sn":{done.sequence},"p2p_peer":{1 - done.place},'
                f'"p2p_msg_size_bytes":{done.size_bytes},"p2p_exec_time_us":{done.kernel_us},'
                f'"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":{bandwidth:.6f},"p2p_busbw_gbs":{bandwidth:.6f}}}}}\n'
            )
            return f"{head}{at_us}{tail}{perf}"
        moved, factor = (done.size_bytes, 2 * (ranks - 1) / ranks)
        if done.collective != "AllReduce":
            moved, factor = done.size_bytes * ranks, (ranks - 1) / ranks
        bandwidth = moved / (done.kernel_us * 1e3)
        return (
            f'{head}{at_us}{tail}"coll_perf":{{"coll":"{done.collective}","coll_sn":{done.sequence},'
            f'"coll_msg_size_bytes":{done.size_bytes},"coll_exec_time_us":{done.kernel_us},'
            f'"coll_timing_source":"kernel_gpu","coll_algobw_gbs":{bandwidth:.6f},'
            f'"coll_busbw_gbs":{bandwidth * factor:.6f}}}}}\n'
        )


class Losses(NamedTuple):
    """What has no record: a share of the operations of ``ranks`` at random; or all but one per second, as 2.28 does.

    ``told``: the plugin writes how many its rings dropped, as it does from its format 4.1 on.
    """

    share: float = 0.0
    ranks: frozenset[int] = frozenset()
    one_slot: bool = False
    told: bool = False


class Passes:
    """The plugin's looks of all ranks: which operations get a line, and when it is written."""

    def __init__(self, losses: Losses, ranks: int, chance: random.Random) -> None:
        self._losses = losses
        self._chance = chance
        self._slots: list[dict[int, Done]] = [{} for _ in range(ranks)]
        self._dropped: Counter[tuple[int, int, bool]] = Counter()
        self._next_us = [chance.randrange(SLOT_PASS_US) for _ in range(ranks)]

    def written(self, done: Iterable[Done], until_us: int) -> Iterator[tuple[int, Done, int]]:
        """Yield when (us since the job's begin) and what is written, and how many were dropped before it, if told.

        Of each rank its operations come in order.

        All operations that end before ``until_us`` are known by then.
        """
        losses = self._losses
        for each in done:
            if losses.one_slot:
                yield from self._looks(each.rank, each.end_us)
                self._slots[each.rank][each.number] = each
                continue
            ring = (each.rank, each.number, each.collective in ("Send", "Recv"))
            if each.rank not in losses.ranks or self._chance.random() >= losses.share:
                yield each.end_us + self._chance.randrange(PASS_US), each, self._dropped.pop(ring, 0)
            elif losses.told:
                self._dropped[ring] += 1
        if losses.one_slot:
            for rank in range(len(self._slots)):
                yield from self._looks(rank, until_us)

    def _looks(self, rank: int, until_us: int) -> Iterator[tuple[int, Done, int]]:
        while self._next_us[rank] < until_us:
            slots, self._slots[rank] = self._slots[rank], {}
            for each in slots.values():
                yield self._next_us[rank], each, 0
            self._next_us[rank] += SLOT_PASS_US
