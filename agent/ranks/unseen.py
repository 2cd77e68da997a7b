"""What of the ranks of this node cannot be shown, and what helps; pure."""

from __future__ import annotations

OTHER_USERS = "50-other-users.conf"
"""The drop-in of the service that gives it the right to read other users' processes."""


def notes(unidentified: int, unreadable: int, duplicates: int) -> list[str]:
    """Sentences for an operator: rank processes that run and have no series of their own, and the remedy."""
    found = []
    if unidentified and unreadable:
        found.append(
            f"{unidentified} rank processes, not identified: their environment may not be read; enable {OTHER_USERS} "
            "(it counts for ranks that start afterwards)"
        )
    elif unidentified:
        found.append(f"{unidentified} rank processes, not identified: nothing names their ranks yet")
    if duplicates:
        found.append(f"{duplicates} rank processes not shown: another process has the same job id and rank")
    return found
