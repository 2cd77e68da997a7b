"""`rankwatch exclude`: list the nodes where jobs repeatedly fail first, for `sbatch --exclude`."""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from agent.cli.terminal import add_prometheus, columns, no_answer, plain, refuse, say
from agent.core import prometheus
from agent.core.prometheus import Sample
from agent.ranks.liveness.causes import HARDWARE

DAYS, MAX_DAYS = 7, 90
POINTS = 3  # Minimum for the list if jobs of several users failed, as in the alert LemonNode
POINTS_OF_ONE_USER = 5  # Minimum if only one user's jobs failed: the user's program can be the cause
_SEEN = "max by (cluster, job_id, node, user, {labels}) (present_over_time({metric}[{days}d]))"
_FAILURES = {"signal, cause": "rank:rankwatch_dead:time", "class": 'rank:rankwatch_exit:time{class="reboot"}'}
_RULES = "count(present_over_time(cluster:rankwatch_targets:count[{days}d]))"
_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL"})
"""Signals that faulty memory or a faulty driver can cause."""


class Lemon(NamedTuple):
    """A node. ``points``: one per job whose first failure was on the node, or two if the cause looks like hardware."""

    cluster: str
    node: str
    points: int
    jobs: int
    users: int


def main(arguments: Sequence[str]) -> int:
    """Query Prometheus and print the list; return the exit status: 0 printed, even if empty, 2 no answer or no list."""
    flags = _parser().parse_args(list(arguments))
    try:
        failures = [
            sample
            for labels, metric in _FAILURES.items()
            for sample in prometheus.samples(
                flags.prometheus, _SEEN.format(labels=labels, metric=metric, days=flags.days)
            )
        ]
        has_rules = bool(failures or prometheus.samples(flags.prometheus, _RULES.format(days=flags.days)))
    except (OSError, ValueError) as error:
        return no_answer("exclude", flags.prometheus, error)
    if not has_rules:
        why = f"this Prometheus has no series of rankwatch's rules in {flags.days} days"
        return refuse("exclude", f"{why}: see rankwatch doctor --prometheus {prometheus.shown(flags.prometheus)}", 2)
    chosen = [
        lemon
        for lemon in lemons(failures)
        if lemon.points >= (flags.points if lemon.users > 1 else max(flags.points, POINTS_OF_ONE_USER))
        and flags.cluster in (None, lemon.cluster)
    ]
    clusters = sorted({lemon.cluster for lemon in chosen})
    if flags.format == "slurm" and len(clusters) > 1:  # sbatch refuses a list with unknown nodes
        return refuse("exclude", f"nodes of several clusters: name one by --cluster ({plain(', '.join(clusters))})", 2)
    say(_FORMATS[flags.format](chosen))
    return 0


def lemons(failures: Iterable[Sample]) -> list[Lemon]:
    """Return the nodes with failures, most points first. ``failures``: samples of jobs' first failures."""
    points: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    users: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for labels in (labels for labels, _ in failures if labels.get("node")):
        node = labels.get("cluster", ""), labels["node"]
        job_id, cause = labels.get("job_id", ""), labels.get("cause", "")
        of_hardware = (
            cause in HARDWARE
            or cause.startswith("xid_")
            or labels.get("signal") in _SIGNALS
            or labels.get("class") == "reboot"
        )
        points[node][job_id] = max(points[node].get(job_id, 0), 2 if of_hardware else 1)
        users[node].add(labels.get("user", ""))
    nodes = [Lemon(*node, sum(jobs.values()), len(jobs), len(users[node] - {""})) for node, jobs in points.items()]
    return sorted(nodes, key=lambda lemon: (-lemon.points, lemon.cluster, lemon.node))


def _table(chosen: Sequence[Lemon]) -> str:
    if not chosen:
        return "no node has enough points (--points, --days; docs/schedulers.md says how failures count)"
    rows = ((row.node, row.cluster or "-", str(row.points), str(row.jobs), str(row.users)) for row in chosen)
    return "\n".join(columns(("NODE", "CLUSTER", "POINTS", "JOBS", "USERS"), rows, 0, colour=False))


_FORMATS: dict[str, Callable[[Sequence[Lemon]], str]] = {
    "table": _table,
    "slurm": lambda chosen: ",".join(plain(lemon.node) for lemon in chosen),
    "json": lambda chosen: json.dumps([lemon._asdict() for lemon in chosen], indent=2),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankwatch exclude",
        description="List nodes where jobs repeatedly fail first: one point per job, two if the cause "
        "looks like hardware. The limits are the shipped thresholds of the alert LemonNode. Example: "
        'nodes=$(rankwatch exclude --prometheus URL --format slurm) && sbatch --exclude "$nodes"',
    )
    add_prometheus(parser, "only nodes of this cluster")
    days = range(1, MAX_DAYS + 1)
    parser.add_argument("--days", type=int, choices=days, default=DAYS, metavar="N", help=f"days back ({DAYS})")
    parser.add_argument(
        "--points",
        type=int,
        default=POINTS,
        metavar="N",
        help=f"least points of a listed node ({POINTS}; if only one user's jobs failed, {POINTS_OF_ONE_USER} or more)",
    )
    parser.add_argument("--format", choices=sorted(_FORMATS), default="table")
    return parser
