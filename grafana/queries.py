"""PromQL shared by several panels. $cluster, $job_id, $rank and $node are the dashboards' variables.

Series that join the ranks of many nodes, or are expensive at 10,000 ranks, come from the recording rules
(deploy/prometheus). Series of one rank, or with few series per rank, come directly from the agents.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

CLUSTER = 'cluster=~"$cluster(^.*)?"'
"""Matches series of the chosen cluster; all series if the variable is empty, as in links of alerts without the label.

`(^.*)?` matches everything after an empty name, and nothing after any other name.
"""
JOB = f'{CLUSTER}, job_id="$job_id"'
RANK = f'{JOB}, rank="$rank"'
NODE = f'{CLUSTER}, node="$node"'
WINDOW = "[$__rate_interval]"
WORST = 12
"""Number of shown nodes, devices or jobs, where there may be thousands."""


class Value(NamedTuple):
    """Display of a state: its number in the query's result, and its colour."""

    code: int
    color: str


STATES = {
    "alive": Value(1, "green"),
    "finished": Value(2, "blue"),
    "exited": Value(3, "yellow"),
    "unknown": Value(4, "purple"),
    "unresponsive": Value(5, "orange"),
    "dead": Value(6, "red"),
}
"""States of a rank, worse ones with higher numbers: topk() returns the worst."""

LIVE_STATES = ("alive", "unresponsive")

PROCESS_STATES = {
    "running": Value(1, "green"),
    "sleeping": Value(2, "blue"),
    "disk_sleep": Value(3, "yellow"),
    "traced": Value(4, "purple"),
    "stopped": Value(5, "orange"),
    "zombie": Value(6, "red"),
}
"""States of a process, worse ones with higher numbers."""


def code_by(label: str, states: Mapping[str, Value], series: Callable[[str], str]) -> str:
    """Return a query for the number of the current state. ``series``: returns the selector of a state's series."""
    terms = (f"{value.code} * ({series(state)} == 1)" for state, value in states.items())
    return f"max by ({label}) (\n  " + "\n    or\n  ".join(terms) + "\n)"


def rank_state_code() -> str:
    """Return a query for the state of each rank of the job over nodes: its worst live state, else its worst state."""
    series = f"rankwatch_rank_state{{{JOB}, state="
    terms = {state: f'{value.code} * ({series}"{state}"}} == 1)' for state, value in STATES.items()}
    live = [terms.pop(state) for state in LIVE_STATES]
    ended = "\n    or on (cluster, job_id, rank)\n  ("
    return "max by (rank) (\n  " + "\n    or\n  ".join(live) + ended + "\n    or\n  ".join(terms.values()) + ")\n)"


def rank_states_count(by: str, selector: str) -> str:
    """Return a query for the number of ranks by labels ``by`` and state; a live rank counts only as live."""
    live = f'rankwatch_rank_state{{{selector}, state=~"{"|".join(LIVE_STATES)}"}} == 1'
    either = f"{live}\n    or on (cluster, job_id, rank)\n  rankwatch_rank_state{{{selector}}} == 1"
    return f"count by ({by}) (max by (cluster, job_id, rank, state) (\n  {either}\n))"


def bus_bandwidth(by: str, selector: str, before: str = "") -> str:
    """Return a query for the mean bus bandwidth over five minutes by labels ``by``, weighted by time.

    ``before``: how long ago, such as ``1d``.
    """
    of = f"{{{selector}}}" + (f" offset {before}" if before else "")
    moved = f"sum by ({by}) (comm_collective:rankwatch_bus_bytes:rate5m{of})"
    return ratio(moved, f"sum by ({by}) (comm_collective:rankwatch_bus_seconds:rate5m{of})")


def silence(selector: str, unless: str = "") -> str:
    """Return a query for the time since each live rank last completed an operation, by its node's clock.

    ``unless``: operator and operand that leave out ranks before the costly match with live ranks.
    """
    progress = f"(rankwatch_rank_last_progress_timestamp_seconds{{{selector}}}{unless})"
    runs = f"rankwatch_rank_up{{{selector}}} == 1"
    return f"max by (cluster, job_id, rank) (time() - {progress} and on (cluster, job_id, rank, node) {runs})"


def lateness(selector: str) -> str:
    """Return a query for the greatest share of time in which others waited for each rank, over communicators."""
    return f"clamp_min(rank:rankwatch_lateness:ratio{{{selector}}}, 0)"


def firing(alert: str, selector: str) -> str:
    """Return the selector of a firing alert."""
    return f'ALERTS{{{selector}, alertname="{alert}", alertstate="firing"}}'


def ratio(numerator: str, denominator: str) -> str:
    """Return a query for a ratio, without series whose denominator is 0."""
    return f"{numerator}\n  / ({denominator} > 0)"


def worst(expression: str) -> str:
    """Return a query for the WORST series with the greatest values."""
    return f"topk({WORST}, {expression})"


def rate_of(metric: str, selector: str, by: str = "") -> str:
    """Return a query for the rate per second of a counter, summed by labels ``by`` or over all series."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{selector}}}{WINDOW}))"


def named(expression: str, series: str) -> str:
    """Return the expression with label comm_name if known.

    ``series``: a selector of series with every comm of the expression. Jobs choose the names. If ranks have different
    names for a communicator, one of these names is used.
    """
    names = f"topk by (comm) (1, max by (comm, comm_name) (rankwatch_communicator_info{{{JOB}}}))"
    return (
        f"({expression})\n  * on (comm) group_left (comm_name) (\n"
        f"    {names}\n      or on (comm)\n    group by (comm) ({series})\n  )"
    )


def most(count: int, expression: str, by: str, *, over: str, each: str = "", least: bool = False) -> str:
    """Return the ``count`` greatest (``least``: least) series of the expression over the shown time.

    ``over``: the series' value over that time. ``by``: labels that distinguish the series. ``each``: labels; the query
    returns ``count`` series for each combination of their values.
    """
    group = f" by ({each})" if each else ""
    return f"{expression}\n  and on ({by}) {'bottomk' if least else 'topk'}{group} ({count}, {over})"


def over_time(function: str, selector: str) -> str:
    """Return ``function`` (such as avg_over_time) of series over the shown time."""
    return f"{function}({selector}[$__range] @ end())"


def coverage(selector: str) -> str:
    """Return a query for the share of operations with a record."""
    seen = rate_of("rankwatch_inspector_seen_records_total", selector)
    return ratio(seen, f"{seen} + {rate_of('rankwatch_inspector_missing_records_total', selector)}")


def latest(series: str) -> str:
    """Return a query for the last values of series in the shown time, including ended series."""
    return f"last_over_time({series}[$__range])"


def endings(selector: str, by: str, *, all_shown: bool = False) -> str:
    """Return a query for ranks' ends (epoch ms), by labels of the rank and of its exit.

    ``all_shown``: all exits in the shown time, and not only those of the last 15 minutes.
    """
    at = f"(1000 * rankwatch_rank_exit_timestamp_seconds{{{selector}}})"
    ends = f"rankwatch_rank_exit_info{{{selector}}} * on (cluster, instance, job_id, rank) group_left ()\n    {at}"
    return f"max by ({by}) (\n  {f'last_over_time(({ends})[$__range:15s])' if all_shown else ends}\n)"


def jobs_that_died_first(selector: str) -> str:
    """Return a query, by node, for the jobs of seven days in which a rank of the node died first or ran at a reboot."""
    rebooted = f'rank:rankwatch_exit:time{{{selector}, class="reboot"}}'
    first = f"present_over_time(rank:rankwatch_dead:time{{{selector}}}[7d]) or present_over_time({rebooted}[7d])"
    return f"count by (node, cluster) (group by (node, cluster, job_id) ({first}))"
