"""Assign numbers to ranks that share their task's environment, which names one rank for all of them. Pure.

Children of a task inherit its variables: workers of vLLM and SGLang, and processes of torch.multiprocessing.spawn.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from agent.ranks.rank.process import RankProcess

# vLLM names its workers `VLLM::Worker_DP0_PP0_TP3_EP3`, SGLang `sglang::scheduler_DP0_TP2` (setproctitle).
_TITLE = re.compile(r"(?:VLLM::|sglang::)[A-Za-z]{1,32}((?:_[A-Z]{2,4}[0-9]{1,5}){1,8})(?!\w)")
_AXIS = re.compile(r"_([A-Z]+)([0-9]+)")
_NO_AXIS = frozenset({"EP"})
"""Ignored axes: the axis EP (expert parallelism) numbers the same processes a second time."""

Coordinates = tuple[tuple[str, int], ...]


def are_siblings(process: RankProcess, other: RankProcess) -> bool:
    """Return True for processes of one scheduler task, or of one parent process.

    A rank and its own child are not siblings: the child can be a helper, and the rank can end a helper at any time.
    """
    if process.facts is None or other.facts is None:
        return False
    if process.facts.parent_pid == other.facts.key.pid or other.facts.parent_pid == process.facts.key.pid:
        return False
    if process.claim.task and process.claim.task == other.claim.task:
        return True
    return process.facts.parent_pid > 1 and process.facts.parent_pid == other.facts.parent_pid


@lru_cache(maxsize=4096)
def coordinates_of(title: str) -> Coordinates:
    """Return the (axis, number) pairs that a process title names, the outermost first; empty without a pair."""
    match = _TITLE.match(title)
    if match is None:
        return ()
    return tuple((axis, int(number)) for axis, number in _AXIS.findall(match[1]) if axis not in _NO_AXIS)


def number_of(own: Coordinates, members: Sequence[Coordinates]) -> int | None:
    """Return the rank of ``own`` among the coordinates ``members``; None if axes differ or two members are equal."""
    axes = [axis for axis, _ in own]
    if not own or len(set(members)) < len(members) or any([axis for axis, _ in member] != axes for member in members):
        return None
    rank = 0
    for index, (_, number) in enumerate(own):
        rank = rank * (1 + max(member[index][1] for member in members)) + number
    return rank


def candidates(process: RankProcess, siblings: Sequence[RankProcess]) -> Iterable[tuple[str, str]]:
    """Yield (rank, source) candidates for a process of a shared environment, the best first.

    ``siblings``: the processes that share the environment, including this one. In a job step with one task, the rank is
    the title's number, or the task's number plus a local index (order of starts). Otherwise the rank is the task's
    number, a point, and the title's number or local index: so ranks of two nodes stay distinct.
    """
    number = number_of(coordinates_of(process.seen.title), [coordinates_of(sibling.seen.title) for sibling in siblings])
    task, alone = process.claim.rank or 0, process.claim.world_size == 1
    if number is not None:
        yield str(number) if alone else f"{task}.{number}", "title"
    first = sorted(sibling.key[::-1] for sibling in siblings).index(process.key[::-1])
    for index in (first, *(index for index in range(len(siblings)) if index != first)):
        yield (str(task + index) if alone or index == 0 else f"{task}.{index}"), "local_index"
