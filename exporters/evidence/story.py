"""What a bundle's summary says: ranks, the witnesses' words, suspects, the time line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.sdk.evidence import summary as told
from agent.sdk.ranks import RankView
from exporters.evidence.watch import Change

COMPLETED = "last completed "
"""What the records' word about a rank's last operation begins with."""
WAITS = {"dead": "is dead", "unresponsive": "does not respond"}


def of_rank(view: RankView, now_seconds: float, words: Iterable[told.Word]) -> told.RankAtTime:
    """Return a rank as the summary has it; what it did last is what its records say among ``words``."""
    own = (word.says for word in words if (word.rank, word.witness) == (view.label.rank, "records"))
    last = next((says for says in own if says.startswith(COMPLETED)), "")
    process = view.process
    state, since = ("unknown" if process.verdict is None else process.verdict.state), 0.0
    since = process.exited_seconds if process.exited_at is not None else 0.0
    quiet = None if process.progress_seconds is None else max(0.0, now_seconds - process.progress_seconds)
    return told.RankAtTime(
        rank=view.label.rank[: told.MAX_TEXT],
        pid=0 if process.facts is None else process.facts.key.pid,
        state=state,
        since=since,
        how=how_ended(view),
        gpu=" ".join(f"{gpu.index} {gpu.uuid}".strip() for gpu in view.gpus())[: told.MAX_TEXT],
        quiet_seconds=quiet,
        last_operation=last,
    )


def how_ended(view: RankView) -> str:
    """Return how a rank's process ended, in words; empty while it runs."""
    process = view.process
    if process.exited_at is None:
        return ""
    status = process.exit
    if status is None or not status.known:
        return "ended, how is not known"
    if status.oom:
        return "was killed by the OOM killer"
    return f"was killed by {status.signal_name}" if status.signal else f"exited with code {status.code}"


def verdict_words(views: Iterable[RankView]) -> list[told.Word]:
    """Return what the verdicts say of ranks in trouble; a rank that others took along is not blamed."""
    words = []
    for view in views:
        verdict = view.process.verdict
        if verdict is None or verdict.state not in WAITS:
            continue
        says = how_ended(view) or f"{WAITS[verdict.state]} ({verdict.reason})"
        words.append(told.Word(view.label.rank, "verdict", says, blames=True))
    return words


def suspects(words: Sequence[told.Word], left_at: Mapping[str, float]) -> list[str]:
    """Return the ranks that are blamed: those by most witnesses first, then the first to leave (s since the epoch)."""
    blames = Counter(word.rank for word in {(word.rank, word.witness): word for word in words if word.blames}.values())
    never = float("inf")
    return sorted(blames, key=lambda rank: (-blames[rank], left_at.get(rank, never), len(rank), rank))


def time_line(views: Iterable[RankView], changes: Iterable[Change], events: Iterable[told.Event]) -> list[told.Event]:
    """Return what happened, in order: ends, changes of states, and what the parts tell."""
    line = [
        told.Event(view.process.exited_seconds, view.label.rank, how_ended(view), "process")
        for view in views
        if view.process.exited_at is not None
    ]
    line += [
        told.Event(change.at, change.rank, f"{change.state} ({change.reason})", "verdict")
        for change in changes
        if change.state != "alive"
    ]
    return sorted((*line, *events), key=lambda event: (event.at, event.rank))[-told.MAX_LISTED :]
