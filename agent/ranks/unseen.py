"""What of the ranks of this node cannot be shown, and what helps; pure."""

from __future__ import annotations

from agent.ranks.snapshot import RankSnapshot

OTHER_USERS = "50-other-users.conf"
"""The drop-in of the service that gives it the right to read other users' processes."""
WITHOUT_NCCL = (
    "{count} processes have a rank in their environment and no NCCL loaded: they use gloo or MPI, or have not "
    "initialised their process group"
)


def notes(table: RankSnapshot) -> list[str]:
    """Return sentences for an operator: rank processes that run and have no series of their own, and the remedy."""
    sentences, unidentified = [], table.unidentified
    if table.without_nccl:
        sentences.append(WITHOUT_NCCL.format(count=table.without_nccl))
    if unidentified and table.unreadable:
        sentences.append(
            f"{unidentified} rank processes, not identified: their environment may not be read; enable {OTHER_USERS} "
            "(it counts for ranks that start afterwards)"
        )
    elif unidentified:
        sentences.append(f"{unidentified} rank processes, not identified: nothing names their ranks yet")
    if table.duplicates:
        sentences.append(f"{table.duplicates} rank processes not shown: another process has the same job id and rank")
    return sentences
