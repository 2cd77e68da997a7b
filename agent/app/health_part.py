"""Ranks on failed hardware: for an evidence bundle (faults of any age), and for causes of exits."""

from collections.abc import Callable, Mapping

import msgspec

from agent.core.identity import RankLabel
from agent.evidence.registry import Offered, Wanted
from agent.evidence.summary import MAX_TEXT, Event, Word
from agent.hardware.ledger import CheckState, Entry
from agent.ranks.health import HealthSnapshot, subjects_of
from agent.ranks.snapshot import RankView

OLD_FAULT_SECONDS = 120.0
"""A fault that began before a rank's start, or within this time after it, did not end the rank: the rank ran on."""


async def health_part(snapshot: Callable[[], HealthSnapshot], wanted: Wanted) -> Offered:
    """Return the health part of a bundle. Its file lists all findings; only failures that count blame a rank."""
    known = snapshot()
    failed = [entry for entry in known.entries if entry.finding.state is CheckState.FAILED]
    words = [
        Word(view.label.rank, "hardware", f"runs on hardware that has failed: {_what(entry)}"[:MAX_TEXT], blames=True)
        for view, entry in _struck(known)
        if view.label.job_id == wanted.job_id
    ]
    events = [
        Event(entry.finding.since_seconds, "", f"{_what(entry)} failed"[:MAX_TEXT], "hardware") for entry in failed
    ]
    rows = [
        {**entry.subject._asdict(), "check": entry.check, "state": entry.finding.state,
         "since": entry.finding.since_seconds, "latched": entry.finding.latched, "source": entry.source}
        for entry in known.entries
    ]  # fmt: skip
    return Offered({"ledger.json": msgspec.json.format(msgspec.json.encode(rows)) + b"\n"}, words, events)


def struck_ranks(snapshot: Callable[[], HealthSnapshot], has_failed: Callable[[], bool]) -> Mapping[RankLabel, str]:
    """Return the ranks on failed hardware, each with the first failed check and the GPU or NIC, as text.

    The result is empty at once if ``has_failed`` returns False: no check has failed.
    """
    return {view.label: _what(entry) for view, entry in reversed(_struck(snapshot()))} if has_failed() else {}


def causes(snapshot: Callable[[], HealthSnapshot], has_failed: Callable[[], bool]) -> Mapping[RankLabel, str]:
    """Return for each rank the check that failed more than OLD_FAULT_SECONDS after its start; ``xid_79`` for Xid 79."""
    if not has_failed():
        return {}
    known = snapshot()
    faults = [(known_fault.gpu_uuid, known_fault.timed.fault) for known_fault in reversed(known.faults)]
    codes = {uuid: fault.code for uuid, fault in faults if fault.role == "root" and fault.hurts != "process"}
    return {
        view.label: f"xid_{codes[entry.subject.name]}"
        if entry.check == "gpu_xid" and entry.subject.name in codes
        else entry.check
        for view, entry in reversed(_struck(known))  # the first check comes last, and stays
        if entry.finding.since_seconds - view.process.facts.start_seconds > OLD_FAULT_SECONDS
    }


def _struck(known: HealthSnapshot) -> list[tuple[RankView, Entry]]:
    """Return each rank with each failed check of its hardware, if the check counts."""
    failed = known.counted_failures()
    hardware = ((view, subjects_of(view)) for view in known.ranks.ranks if failed)
    return [(view, entry) for view, subjects in hardware for entry in failed if entry.subject in subjects]


def _what(entry: Entry) -> str:
    subject = f"{entry.subject.kind} {entry.subject.name}".strip()
    return f"{entry.check} of {subject}"
