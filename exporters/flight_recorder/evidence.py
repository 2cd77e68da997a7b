"""The dumps' part of an evidence bundle: the progress of each rank here, and which ranks block others.

A rank blocks others if it has not begun a collective that they wait in, or has not finished a collective that they
have finished. The evidence blames a rank only if it waits for no other rank: a rank that waits in another collective
may be blocked by a rank on another node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import msgspec

from agent.sdk.evidence import Offered, summary
from exporters.flight_recorder.book import ShownDump
from exporters.flight_recorder.dump import GroupProgress

FILE = "dumps.json"
MAX_WORDS = 256
APART_SECONDS = 900.0
"""Ranks write the dumps of one hang within this time. Dumps older than that belong to an earlier hang."""
OF_ALL = frozenset(
    ["all_reduce", "all_reduce_barrier", "allreduce_coalesced", "barrier", "all_to_all", "all_gather",
     "_all_gather_base", "all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
     "reduce_scatter_tensor_coalesced"]
)  # fmt: skip
"""Operations that complete on all ranks or on none."""
_VARIANT = re.compile(r"^_|_base$")


def part(dumps: Iterable[ShownDump], job_id: str) -> Offered:
    """Return the part of a job's bundle; empty without a dump of its ranks here."""
    of_job = [dump for dump in dumps if dump.label.job_id == job_id]
    newest = max((dump.written for dump in of_job), default=0.0)
    of_hang = [dump for dump in of_job if dump.written >= newest - APART_SECONDS]
    if not of_hang:
        return Offered({})
    hang = _Hang(of_hang)
    words = [word for dump in of_hang for word in hang.words(dump)]
    listed = [{"rank": dump.label.rank, "written": dump.written, "groups": dump.summary.groups} for dump in of_hang]
    return Offered({FILE: msgspec.json.encode(listed) + b"\n"}, words[:MAX_WORDS])


class _Hang:
    """Per process group name: the highest collective that a rank here waits in, and the lowest last begun one."""

    def __init__(self, dumps: Collection[ShownDump]) -> None:
        self._awaited: dict[str, GroupProgress] = {}
        self._least: dict[str, int] = {}
        for group in (group for dump in dumps for group in dump.summary.groups):
            if _waits_in(group) > self._farthest(group.name):
                self._awaited[group.name] = group
            if group.enqueued is not None:
                self._least[group.name] = min(group.enqueued, self._least.get(group.name, group.enqueued))

    def words(self, dump: ShownDump) -> Iterable[summary.Word]:
        """Yield what the rank of a dump had not begun or not finished, and what it waited in."""
        groups = dump.summary.groups
        waits = next((group for group in groups if group.waits is not None), None)
        behind = next((group for group in groups if self._has_not_begun(group)), None)
        stuck = next((group for group in groups if self._has_not_finished(group)), None)
        if behind is not None:
            says = f"had not begun {_operation(self._awaited[behind.name])}, which others here had"
            yield _word(dump, says, blames=waits is None)
        if stuck is not None and not any(map(self._waits_for_a_rank_here, groups)):
            yield _word(dump, f"had not finished {_operation(stuck)}, which others here had", blames=True)
        elif waits is not None:
            yield _word(dump, f"waited in {_operation(waits)}", blames=False)

    def _farthest(self, name: str) -> int:
        known = self._awaited.get(name)
        return -1 if known is None else _waits_in(known)

    def _has_not_begun(self, group: GroupProgress) -> bool:
        return group.enqueued is not None and group.enqueued < self._farthest(group.name)

    def _has_not_finished(self, group: GroupProgress) -> bool:
        is_of_all = group.waits is not None and group.waits.operation in OF_ALL
        return is_of_all and _waits_in(group) < self._farthest(group.name)

    def _waits_for_a_rank_here(self, group: GroupProgress) -> bool:
        return _waits_in(group) > self._least.get(group.name, _waits_in(group))


def _waits_in(group: GroupProgress) -> int:
    return -1 if group.waits is None else group.waits.sequence


def _operation(group: GroupProgress) -> str:
    operation = "" if group.waits is None else _VARIANT.sub("", group.waits.operation)
    return f"{operation} no. {_waits_in(group)} of group {group.description or group.name}"


def _word(dump: ShownDump, says: str, *, blames: bool) -> summary.Word:
    return summary.Word(dump.label.rank, "flight_recorder", says[: summary.MAX_TEXT], blames)
