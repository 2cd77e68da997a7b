"""What a job's own log adds to a bundle of evidence: its first cause, and what it says of each rank. Pure.

All is in words of ours, and no line of the log is in it, unless the site wants those around events: they may hold
whatever a user printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.evidence import Offered, Wanted, summary as told
from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log.passages import Passage, as_text
from exporters.job_log.tally import CASCADE, ROOT, FirstEvent, ShownLog

KINDS = {ROOT: "the first cause that the job's log names", CASCADE: "the job's log names no cause, and first"}


def log_part(jobs: Iterable[ShownLog], passages: Mapping[str, Iterable[Passage]], wanted: Wanted) -> Offered:
    """Return the part; empty where no log of the job is read here. ``passages``: the lines that are kept, by job."""
    shown = next((each for each in jobs if each.job_id == wanted.job_id), None)
    if shown is None:
        return Offered({})
    events = [
        told.Event(first.seconds, _rank(first), _words(role, first), "job_log")
        for role, first in ((ROOT, shown.root), (CASCADE, shown.cascade))
        if first is not None
    ]
    words = []
    if shown.root is not None and _rank(shown.root):
        words.append(told.Word(_rank(shown.root), "job_log", _words(ROOT, shown.root), blames=True))
    counts = [
        {"rank": rank, "category": category, "role": role, "lines": count}
        for (rank, category, role), count in sorted(shown.events.items())
    ]
    files = {"log.json": msgspec.json.format(msgspec.json.encode(counts)) + b"\n"}
    if wanted.job_id in passages:
        files["lines.txt"] = as_text(passages[wanted.job_id]).encode()
    return Offered(files, words, events)


def _rank(first: FirstEvent) -> str:
    return "" if first.rank == UNKNOWN_RANK else first.rank


def _words(role: str, first: FirstEvent) -> str:
    host = f" on {first.host}" if first.host else ""
    return f"{KINDS[role]}: {first.category.replace('_', ' ')}{host}"[: told.MAX_TEXT]
