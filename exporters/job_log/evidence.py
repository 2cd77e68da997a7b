"""The job log's part of an evidence bundle: its first cause, and the events of each rank. Pure.

Log lines may hold anything that a user printed. So the part has only the exporter's own words, and log lines around
events only if the site configures them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.evidence import Offered, Wanted, summary
from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log.passages import Passage, as_text
from exporters.job_log.tally import CASCADE, ROOT, FirstEvent, ShownLog

KINDS = {ROOT: "first cause in the job's log", CASCADE: "no cause in the job's log, first secondary failure"}


def log_part(jobs: Iterable[ShownLog], passages: Mapping[str, Iterable[Passage]], wanted: Wanted) -> Offered:
    """Return the part; empty if no log of the job is read here. ``passages``: the kept lines by job."""
    shown = next((each for each in jobs if each.job_id == wanted.job_id), None)
    if shown is None:
        return Offered({})
    events = [
        summary.Event(first.seconds, _rank(first), _words(role, first), "job_log")
        for role, first in ((ROOT, shown.root), (CASCADE, shown.cascade))
        if first is not None
    ]
    words = []
    if shown.root is not None and _rank(shown.root):
        words.append(summary.Word(_rank(shown.root), "job_log", _words(ROOT, shown.root), blames=True))
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
    category = first.category.replace("_", " ")
    if first.exception:
        return f"raised {first.exception}{host} ({category})"
    return f"{KINDS[role]}: {category}{host}"[: summary.MAX_TEXT]
