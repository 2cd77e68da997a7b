"""What the health ledger adds to a bundle of evidence: all findings, and which ranks run on failed hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.core.identity import RankLabel
from agent.evidence.board import Offered, Wanted
from agent.evidence.summary import MAX_TEXT, Event, Word
from agent.hardware.ledger import CheckState, Entry
from agent.ranks.health import HealthSnapshot, subjects_of


async def health_part(snapshot: Callable[[], HealthSnapshot], wanted: Wanted) -> Offered:
    """Return the part; findings that do not count are in the file, and blame no rank."""
    known = snapshot()
    failed = [each for each in known.entries if each.finding.state is CheckState.FAILED]
    counting = [each for each in failed if each.check in known.counted]
    words = [
        Word(view.label.rank, "hardware", f"runs on hardware that has failed: {_what(each)}"[:MAX_TEXT], blames=True)
        for view in known.ranks.ranks
        if view.label.job_id == wanted.job_id
        for each in counting
        if each.subject in subjects_of(view)
    ]
    events = [Event(each.finding.since_seconds, "", f"{_what(each)} failed"[:MAX_TEXT], "hardware") for each in failed]
    rows = [
        {
            "kind": each.subject.kind,
            "name": each.subject.name,
            "check": each.check,
            "state": each.finding.state,
            "since": each.finding.since_seconds,
            "latched": each.finding.latched,
            "source": each.source,
        }
        for each in known.entries
    ]
    return Offered({"ledger.json": msgspec.json.format(msgspec.json.encode(rows)) + b"\n"}, words, events)


def struck_ranks(snapshot: Callable[[], HealthSnapshot], has_failed: Callable[[], bool]) -> Mapping[RankLabel, str]:
    """Return the ranks that run on hardware that has failed, each with the first check that says so.

    ``has_failed``: whether any check has, as is seldom; nothing else is looked at otherwise.
    """
    if not has_failed():
        return {}
    known = snapshot()
    counting = [
        each for each in known.entries if each.finding.state is CheckState.FAILED and each.check in known.counted
    ]
    return {
        view.label: _what(each)
        for view in known.ranks.ranks
        for each in reversed(counting)
        if each.subject in subjects_of(view)
    }


def _what(entry: Entry) -> str:
    subject = f"{entry.subject.kind} {entry.subject.name}".strip()
    return f"{entry.check} of {subject}"
