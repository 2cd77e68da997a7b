"""Ranks of processes that share one environment, whose rank number is their task's and not theirs. Pure.

Children of one task inherit its variables: workers of vLLM and SGLang, and what torch.multiprocessing.spawn starts.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from agent.ranks.rank.process import RankProcess

# vLLM names its workers `VLLM::Worker_DP0_PP0_TP3_EP3`, SGLang `sglang::scheduler_DP0_TP2` (setproctitle).
_TITLE = re.compile(r"(?:VLLM::|sglang::)[A-Za-z]{1,32}((?:_[A-Z]{2,4}[0-9]{1,5}){1,8})(?!\w)")
_AXIS = re.compile(r"_([A-Z]+)([0-9]+)")
_NO_AXIS = frozenset({"EP"})
"""Expert ranks are a second number of the same processes."""

Place = tuple[tuple[str, int], ...]


def are_siblings(process: RankProcess, other: RankProcess) -> bool:
    """Return True for processes of one task: the scheduler's, or children of one parent.

    A rank's own child is none: it may be a helper that the rank ends as it likes.
    """
    if process.facts is None or other.facts is None:
        return False
    if process.facts.parent_pid == other.facts.key.pid or other.facts.parent_pid == process.facts.key.pid:
        return False
    if process.claim.task and process.claim.task == other.claim.task:
        return True
    return process.facts.parent_pid > 1 and process.facts.parent_pid == other.facts.parent_pid


@lru_cache(maxsize=4096)
def place_of(title: str) -> Place:
    """The parallel axes and numbers that a process title names, the outermost first; empty when it names none."""
    match = _TITLE.match(title)
    if match is None:
        return ()
    return tuple((axis, int(number)) for axis, number in _AXIS.findall(match[1]) if axis not in _NO_AXIS)


def number_of(own: Place, places: Sequence[Place]) -> int | None:
    """Return the rank of ``own`` among ``places``, which hold it, if all have the same axes and are different."""
    axes = [axis for axis, _ in own]
    if not own or len(set(places)) < len(places) or any([axis for axis, _ in place] != axes for place in places):
        return None
    rank = 0
    for index, (_, number) in enumerate(own):
        rank = rank * (1 + max(place[index][1] for place in places)) + number
    return rank


def candidates(process: RankProcess, siblings: Sequence[RankProcess]) -> Iterable[tuple[str, str]]:
    """Names for a process of a shared environment and where each is from, the best first.

    ``siblings``: the processes that share it, this one among them. A title's number is the rank, and a local index, in
    the order of starts, is counted from the task's number, where that task is its step's only one; else both follow
    that number after a point, or ranks of two nodes would be one.
    """
    titles = [place_of(sibling.facts.title if sibling.facts is not None else "") for sibling in siblings]
    number = number_of(place_of(process.facts.title if process.facts is not None else ""), titles)
    task, alone = process.claim.rank or 0, process.claim.world_size == 1
    if number is not None:
        yield str(number) if alone else f"{task}.{number}", "title"
    in_order = sorted(sibling.facts.key[::-1] for sibling in siblings if sibling.facts is not None)
    first = in_order.index(process.facts.key[::-1]) if process.facts is not None else 0
    for index in (first, *(index for index in range(len(siblings)) if index != first)):
        yield (str(task + index) if alone or index == 0 else f"{task}.{index}"), "local_index"
