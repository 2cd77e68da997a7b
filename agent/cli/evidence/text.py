"""A bundle's summary as one readable screen. Pure."""

import time
from collections.abc import Iterable, Sequence

from agent.evidence.summary import Summary, Word

SHOWN_EVENTS = 40
"""Events of the time line that are printed: half of them the first, half the last."""
SHOWN_RANKS = 32


def clean(text: str) -> str:
    """Return a line without what a terminal would take for a command: users name jobs, files and functions."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def when(seconds: float) -> str:
    """Return a time of day (UTC) with tenths of seconds, which are cut: order stays."""
    return f"{time.strftime('%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 10)}"


def listed(found: Iterable[tuple[str, Summary]]) -> str:
    """Return a line for each bundle, the newest first."""
    rows = [
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(each.taken_at))}  job {each.job_id}  {name}  {each.because}"
        for name, each in found
    ]
    return "\n".join(map(clean, reversed(rows))) + "\n" if rows else "no bundles\n"


def shown(name: str, found: Summary) -> str:
    """Return the summary: suspects and why, the time line, the ranks, the parts."""
    lines = [
        f"{name}: job {found.job_id} on {found.node}, "
        f"{time.strftime('%Y-%m-%d', time.gmtime(found.taken_at))} {when(found.taken_at)} UTC, "
        f"because {found.because}",
        "",
        "Suspects",
        *(_suspects(found) or ["  none that this node knows of"]),
        "",
        "Time line (UTC)",
        *_events(found),
        "",
        "Ranks here",
        *_ranks(found),
        "",
        "Parts",
        *(f"  {part.name}: {part.failed or f'{part.size_bytes} bytes'}" for part in found.parts),
    ]
    return "\n".join(map(clean, lines)) + "\n"


def _suspects(found: Summary) -> list[str]:
    return [
        f"  rank {rank}: {_words([word for word in found.words if word.rank == rank and word.blames])}"
        for rank in found.suspects[:SHOWN_RANKS]
    ]


def _words(words: Sequence[Word]) -> str:
    return "; ".join(f"{word.says} ({word.witness.replace('_', ' ')})" for word in words)


def _events(found: Summary) -> list[str]:
    events = found.timeline
    half = SHOWN_EVENTS // 2
    lines = [
        f"  {when(each.at)}  {f'rank {each.rank}: ' if each.rank else ''}{each.what} ({each.source})" for each in events
    ]
    if len(lines) <= SHOWN_EVENTS:
        return lines or ["  nothing"]
    return [*lines[:half], f"  ... {len(lines) - SHOWN_EVENTS} more ...", *lines[-half:]]


def _ranks(found: Summary) -> list[str]:
    lines = [
        "  "
        + ", ".join(
            text
            for text in (
                f"rank {each.rank}",
                f"pid {each.pid}",
                each.state,
                each.how,
                f"GPU {each.gpu}" if each.gpu else "",
                "" if each.quiet_seconds is None else f"quiet for {each.quiet_seconds:.0f} s",
                each.last_operation,
            )
            if text
        )
        for each in found.ranks
    ]
    rest = len(lines) - SHOWN_RANKS
    return lines[:SHOWN_RANKS] + ([f"  ... {rest} more ..."] if rest > 0 else [])
