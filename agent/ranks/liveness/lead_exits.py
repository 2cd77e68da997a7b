"""Which exits of a job on this node are lead exits, and the class of each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from signal import SIGABRT, SIGKILL
from typing import Literal

from agent.core.identity import ProcessKey
from agent.ranks.rank.episodes import fatal_reason, is_struck, left_at_of, preceded
from agent.ranks.rank.evidence import ProcessEvidence
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.numbers import NUMBERS, Numbers

ExitClass = Literal["oom", "crash", "fail", "torn", "killed", "left", "ok", "reboot"]
"""oom: the OOM killer. crash: SEGV, BUS, ILL, FPE, TRAP, SYS. fail: ABRT, status 1 to 127. torn: SIGKILL, and SIGTERM
for a peer here within 10 s. killed: any other SIGKILL. left: SIGTERM, status 0 and all others, unless a proof shows
that the job finished. ok: finished, planned, or ended by the scheduler. reboot: it ran when this machine went down."""


def class_of(status: ExitStatus | None, *, finished: bool, torn: bool) -> ExitClass:
    """Return the class of an exit. ``finished``: a proof shows it; ``torn``: ``killed_before_teardown`` has it."""
    if finished:
        return "ok"
    reason = fatal_reason(status)
    if reason == "oom_killed":
        return "oom"
    if reason is not None:
        is_crash = reason == "fatal_signal" and status is not None and status.signal != SIGABRT
        return "crash" if is_crash else "fail"
    if torn:
        return "torn"
    return "killed" if status is not None and status.known and status.signal == SIGKILL else "left"


def lead_exits(
    exits: Sequence[ProcessEvidence], soft: Collection[ProcessKey], numbers: Numbers = NUMBERS
) -> set[ProcessKey]:
    """Return the lead exits: of each episode the first, the first soft one and the first struck one.

    ``exits``: those of one job here, by time. ``soft``: those by SIGTERM and those of class ok, which show a cancel or
    an end. An episode ends when no rank has left for ``episode_seconds``.
    """
    victims = preceded(exits, numbers)
    leads: set[ProcessKey] = {process.key for process in exits if process.key not in victims}
    for episode in _episodes(exits, numbers.episode_seconds):
        leads.update(process.key for process in [p for p in episode if p.key in soft][:1])
        leads.update(process.key for process in [p for p in episode if is_struck(p)][:1])
    return leads


def _episodes(exits: Sequence[ProcessEvidence], seconds: float) -> Iterator[Sequence[ProcessEvidence]]:
    start = 0
    for number in range(1, len(exits) + 1):
        if number == len(exits) or left_at_of(exits[number]) - left_at_of(exits[number - 1]) > seconds:
            yield exits[start:number]
            start = number
