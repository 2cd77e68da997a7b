"""What was told of made-up jobs against what is true of them, and the tables of it for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from judged_jobs import Found
from made_kinds import Made

SAID_BEFORE = "before it began"


class Verdict(NamedTuple):
    """A job and what was told of it: who was ``missed``, which innocents were named, when what is true was told first.

    ``seconds``: from the onset until all who are to be named were. ``behind``: ranks that were named because they are
    behind the slow link that is to be named.
    """

    made: Made
    found: Found
    missed: list[str]
    innocents: list[str]
    seconds: float | None
    behind: list[str]

    @property
    def is_right(self) -> bool:
        """Return whether all who are to be named were, and nobody else."""
        return not self.missed and not self.innocents


def judged(made: Made, found: Found) -> Verdict:
    """Compare what was told with the truth."""
    truth = made.truth
    late = {f"rank {rank}": first for (rank,), first in found.named["StragglerRank"].items()}
    slow = {f"communicator {comm}": first for (comm,), first in found.named["SlowCommunicator"].items()}
    pairs = {f"pair {_pair(rank, peer)}": first for (rank, peer), first in found.named["SlowPair"].items()}
    guilty = {f"rank {rank}" for rank in truth.late} | {f"communicator {comm}" for comm in truth.slow}
    guilty |= {f"pair {_pair(*map(str, truth.pair))}"} if truth.pair else set()
    behind = {f"rank {rank}" for rank in truth.behind} - guilty
    named = late | slow | pairs
    onsets = dict.fromkeys(late, truth.late_onset)
    told = {each: first - onsets.get(each, truth.link_onset) for each, first in named.items() if each in guilty}
    missed = sorted(guilty - told.keys())
    if truth.thin and "RecordsLost" in found.alerts:
        missed = []
    innocents = sorted(named.keys() - guilty - behind)
    innocents += sorted(f"{each} {SAID_BEFORE}" for each, seconds in told.items() if seconds < 0)
    innocents += _unfounded(made, found)
    seconds = max(told.values()) if told and not guilty - told.keys() else None
    return Verdict(made, found, missed, innocents, seconds, sorted(behind & named.keys()))


def _pair(rank: str, peer: str) -> str:
    return "-".join(sorted((rank, peer), key=lambda each: (len(each), each)))


def _unfounded(made: Made, found: Found) -> list[str]:
    """Return the alerts that this job gives no reason for, whatever they name."""
    truth = made.truth
    reasons = {
        "StragglerRank": truth.late | truth.behind,
        "SlowCommunicator": truth.slow,
        "SlowPair": truth.pair,
        "RecordsLost": made.losses.ranks or made.losses.one_slot,
    }
    nobody = {alert for alert, named in found.named.items() if not named} | {"RecordsLost"}
    return sorted(alert for alert in found.alerts if alert in nobody and not reasons[alert])


def share_right(verdicts: Sequence[Verdict]) -> float:
    """Return the share of jobs of which just the right was told."""
    return sum(each.is_right for each in verdicts) / len(verdicts)


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of them does not exceed; infinity where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


def table(verdicts: Sequence[Verdict]) -> str:
    """Return a line for each kind as Markdown, and one for each job of which something wrong was told."""
    kinds: dict[str, list[Verdict]] = defaultdict(list)
    for each in verdicts:
        kinds[each.made.kind].append(each)
    lines = [
        "| kind | jobs | right | somebody missed | innocents named | told of ranks behind a slow link "
        "| first told after s: median, p90, latest |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, of_kind in kinds.items():
        times = [each.seconds for each in of_kind if each.seconds is not None]
        when = ", ".join(f"{percentile(times, share):.0f}" for share in (0.5, 0.9, 1.0)) if times else "-"
        counts = (
            len(of_kind),
            sum(each.is_right for each in of_kind),
            sum(bool(each.missed) for each in of_kind),
            sum(bool(each.innocents) for each in of_kind),
            sum(bool(each.behind) for each in of_kind),
        )
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} | {when} |")
    lines += ["", *(job_line(each) for each in verdicts if not each.is_right)]
    return "\n".join(lines) + "\n"


def job_line(verdict: Verdict) -> str:
    """Return what a job was and what was told of it, with the seed that makes it again."""
    made, found = verdict.made, verdict.found
    shape = made.layout.shape
    alerts = ", ".join(f"{alert} at {second:.0f} s" for alert, second in sorted(found.alerts.items())) or "nothing"
    return (
        f"- {made.kind}, seed {made.seed} ({shape.nodes} x {shape.ranks_per_node} ranks, TP {shape.tp}, steps of "
        f"{made.layout.step_seconds:g} s; {made.what}): told {alerts}; missed "
        f"{verdict.missed or 'nobody'}; innocents {verdict.innocents or 'none'}"
    )
