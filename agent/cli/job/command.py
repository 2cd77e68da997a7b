"""Print `rankwatch job`: first a summary, then the ranks in trouble."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from agent.cli.job.facts import MEMORY, UNSEEN, JobFacts, JobRank, facts_from, known_jobs
from agent.cli.terminal import add_prometheus, as_json, columns, count, has_colours, no_answer, plain, rank_set, say
from agent.core import prometheus
from agent.core.identity import rank_order
from agent.page.describe import TROUBLE_FIRST, ago, how_ended

_HEAD = ("RANK", "NODE", "STATE", "PID", "USER", "GPU", "PROGRESS", "LATE", "WHY", "HOW IT ENDED", "ENDED")
_WELL = frozenset({"alive", "finished"})
_BAD = frozenset({"dead", "unresponsive", "unknown", UNSEEN})


def as_text(facts: JobFacts, known: str = "", *, every: bool = False, colour: bool = False) -> str:
    """Return the job as lines of text. ``known``: the known jobs. ``every``: list healthy ranks too."""
    if len(facts.clusters) > 1:
        names = ", ".join(plain(cluster) or "(none)" for cluster in facts.clusters)
        return f"clusters {names} each have a job {plain(facts.job_id)}: choose one by --cluster"
    if not facts.ranks:
        return f"job {plain(facts.job_id)}: no rank was seen in the last hour; known jobs: {plain(known)}"
    lines = [_title(facts), *_states(facts), *_first(facts), *_missing(facts), *_alerts(facts)]
    if not facts.has_rules:
        lines.append("the shipped rules have no series of this job: are they loaded? (without them no rank is late)")
    rows = sorted((rank for rank in facts.ranks if every or _in_trouble(rank)), key=_order)
    if rows:
        cells = (_cells(rank, facts.now_seconds) for rank in rows)
        lines += ["", *columns(_HEAD, cells, _HEAD.index("STATE"), colour=colour)]
    left_out = len(facts.ranks) - len(rows)
    if left_out:
        lines.append(f"{left_out} ranks without trouble are not listed (--all)")
    return "\n".join(lines)


def _title(facts: JobFacts) -> str:
    info = facts.info or {}
    said = [info.get("name", ""), info.get("user", ""), info.get("partition", "")]
    named = ", ".join(plain(word) for word in said if word)
    nodes = len({rank.node for rank in facts.ranks})
    speed = facts.bus_bandwidth_bytes_per_second
    return (
        f"job {plain(facts.job_id)}{f' ({named})' if named else ''}: {count(len(facts.ranks), 'rank')} on "
        f"{count(nodes, 'node')}{'' if speed is None else f', bus bandwidth {speed / 1e9:.1f} GB/s'}"
    )


def _states(facts: JobFacts) -> list[str]:
    counts = Counter(plain(rank.state) for rank in facts.ranks)
    by_severity = sorted(counts, key=lambda state: (_severity(state), state))
    said = [f"{counts[state]} {'not seen any more' if state == UNSEEN else state}" for state in by_severity]
    late = sum(rank.late_share is not None for rank in facts.ranks)
    return ["now: " + ", ".join([*said, *([f"{late} late"] if late else [])])]


def _first(facts: JobFacts) -> list[str]:
    dead = [(rank.ended, rank) for rank in facts.ranks if rank.state == "dead" and rank.ended is not None]
    if not dead:
        return []
    ended, first = min(dead, key=lambda death: death[0].at_seconds)
    clock = time.strftime("%H:%M:%S", time.localtime(ended.at_seconds))
    return [
        f"first to go: rank {plain(first.rank)} on {plain(first.node)} {how_ended(ended)} at {clock}, "
        + ago(facts.now_seconds - ended.at_seconds)
    ]


def _missing(facts: JobFacts) -> list[str]:
    unseen: dict[str, list[str]] = {}
    for rank in facts.ranks:
        if rank.state == UNSEEN:
            unseen.setdefault(rank.node, []).append(rank.rank)
    lines = [f"not seen any more: {rank_set(ranks)} on {plain(node)}" for node, ranks in sorted(unseen.items())]
    numbers = {rank.rank for rank in facts.ranks}
    if facts.expected is not None and facts.expected > len(numbers):
        lines.append(f"never seen in the last hour: {facts.expected - len(numbers)} of {facts.expected} ranks")
    return lines


def _alerts(facts: JobFacts) -> list[str]:
    alerts = Counter((alert.severity, alert.name) for alert in facts.alerts)
    return [
        f"{plain(severity) or 'alert'}: {plain(name)}{f' ({count})' if count > 1 else ''}"
        for (severity, name), count in sorted(alerts.items())
    ]


def _in_trouble(rank: JobRank) -> bool:
    return rank.state not in _WELL or rank.late_share is not None


def _order(rank: JobRank) -> tuple[object, ...]:
    return _severity(rank.state), -(rank.late_share or 0.0), rank_order(rank.rank)


def _severity(state: str) -> int:
    order = ("dead", "unresponsive", UNSEEN, *TROUBLE_FIRST[2:])
    return order.index(state) if state in order else 0


def _cells(rank: JobRank, now_seconds: float) -> Sequence[str]:
    ended = rank.ended if rank.state not in ("alive", "unresponsive") else None
    return (
        rank.rank,
        rank.node,
        rank.state,
        rank.pid,
        rank.user,
        rank.gpus,
        "" if rank.progress_seconds is None else ago(now_seconds - rank.progress_seconds),
        "" if rank.late_share is None else f"{rank.late_share:.0%}",
        ", ".join(rank.why),
        "" if ended is None else how_ended(ended),
        "" if ended is None else ago(now_seconds - ended.at_seconds),
    )


def main(arguments: Sequence[str]) -> int:
    """Query Prometheus, print the job; exit status: 0 no rank in _BAD, 1 a rank in _BAD or no such job, 2 no reply."""
    parser = argparse.ArgumentParser(
        prog="rankwatch job",
        description="Show a whole job over all its nodes: which ranks are dead, late or missing, and which died first. "
        "Exit status: 0 no rank is dead, unresponsive, unknown or missing, 1 a rank is, or no such job, 2 no answer.",
    )
    parser.add_argument("job", metavar="ID", help="the job's id")
    add_prometheus(parser)
    parser.add_argument("--all", action="store_true", help="also list the ranks without trouble")
    parser.add_argument("--json", action="store_true", help="all data, as JSON")
    flags = parser.parse_args(list(arguments))
    try:
        ask = partial(prometheus.samples, flags.prometheus)
        facts = facts_from(ask, flags.job, flags.cluster)
        known = "" if facts.ranks else known_jobs(ask, MEMORY)
    except (OSError, ValueError) as error:
        return no_answer("job", flags.prometheus, error)
    say(as_json(asdict(facts)) if flags.json else as_text(facts, known, every=flags.all, colour=has_colours()))
    is_well = facts.ranks and not any(rank.state in _BAD for rank in facts.ranks)
    return 0 if is_well else 1
