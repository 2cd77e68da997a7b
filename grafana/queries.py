"""PromQL that several panels share. $cluster, $job_id, $rank and $node are the dashboards' variables.

What joins the ranks of many nodes, or is dear at 10,000 ranks, comes from the recording rules (deploy/prometheus). What
is one rank's, or has few series per rank, comes straight from the agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

CLUSTER = 'cluster=~"$cluster(^.*)?"'
"""Series of the chosen cluster; of all where the name is empty, as in links of alerts of a site without the label.

`(^.*)?` takes all that is there after an empty name, and nothing after any other.
"""
JOB = f'{CLUSTER}, job_id="$job_id"'
RANK = f'{JOB}, rank="$rank"'
NODE = f'{CLUSTER}, node="$node"'
WINDOW = "[$__rate_interval]"


class Value(NamedTuple):
    """How a state is shown: its number in the query's result, and its colour."""

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
"""The states of a rank, the worse the higher: topk() gives the worst."""

LIVE_STATES = ("alive", "unresponsive")

PROCESS_STATES = {
    "running": Value(1, "green"),
    "sleeping": Value(2, "blue"),
    "disk_sleep": Value(3, "yellow"),
    "traced": Value(4, "purple"),
    "stopped": Value(5, "orange"),
    "zombie": Value(6, "red"),
}
"""The states of a process, likewise."""


def code_by(label: str, states: Mapping[str, Value], series: Callable[[str], str]) -> str:
    """Return a query for the number of the state that is set; ``series`` gives a state's own series."""
    terms = (f"{value.code} * ({series(state)} == 1)" for state, value in states.items())
    return f"max by ({label}) (\n  " + "\n    or\n  ".join(terms) + "\n)"


def rank_state_code() -> str:
    """Return a query for the state of each rank of the job; one that lives again elsewhere is not gone."""
    return _worst_of(_rank_state)


def _worst_of(series: Callable[[str], str]) -> str:
    """Return a query for the worst state of each rank; what it is elsewhere counts where it lives nowhere."""
    terms = {state: f"{value.code} * ({series(state)} == 1)" for state, value in STATES.items()}
    live = [terms.pop(state) for state in LIVE_STATES]
    gone = "\n    or on (cluster, job_id, rank)\n  ("
    return "max by (rank) (\n  " + "\n    or\n  ".join(live) + gone + "\n    or\n  ".join(terms.values()) + ")\n)"


def rank_states_count(by: str, selector: str) -> str:
    """Return a query for how many ranks there are, by labels ``by``, of which state is one; likewise."""
    live = f'rankwatch_rank_state{{{selector}, state=~"{"|".join(LIVE_STATES)}"}} == 1'
    either = f"{live}\n    or on (cluster, job_id, rank)\n  rankwatch_rank_state{{{selector}}} == 1"
    return f"count by ({by}) (max by (cluster, job_id, rank, state) (\n  {either}\n))"


def _rank_state(state: str) -> str:
    return f'rankwatch_rank_state{{{JOB}, state="{state}"}}'


def bus_bandwidth(by: str, selector: str, before: str = "") -> str:
    """Return a query for the mean bus bandwidth over five minutes by labels ``by``, weighted by time.

    ``before``: how long ago, as ``1d``.
    """
    of = f"{{{selector}}}" + (f" offset {before}" if before else "")
    moved = f"sum by ({by}) (comm_collective:rankwatch_bus_bytes:rate5m{of})"
    return ratio(moved, f"sum by ({by}) (comm_collective:rankwatch_bus_seconds:rate5m{of})")


def silence(selector: str) -> str:
    """Return a query for the time since each live rank last completed an operation, by its node's clock."""
    progress = f"rankwatch_rank_last_progress_timestamp_seconds{{{selector}}}"
    runs = f"rankwatch_rank_up{{{selector}}} == 1"
    return f"max by (cluster, job_id, rank) (time() - {progress} and on (cluster, job_id, rank, node) {runs})"


def lateness(selector: str) -> str:
    """Return a query for the share of time that others waited for each rank, in the communicator where it is most."""
    return f"clamp_min(rank:rankwatch_lateness:ratio{{{selector}}}, 0)"


def firing(alert: str, selector: str) -> str:
    """Return the series of an alert that fires."""
    return f'ALERTS{{{selector}, alertname="{alert}", alertstate="firing"}}'


def ratio(numerator: str, denominator: str) -> str:
    """Return a query for a ratio, without series where the denominator is 0."""
    return f"{numerator}\n  / ({denominator} > 0)"


def rate_of(metric: str, selector: str, by: str = "") -> str:
    """Return a query for a counter's rate per second, summed, over labels ``by`` or over all."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{selector}}}{WINDOW}))"


def named(expression: str, series: str) -> str:
    """Return the expression with comm_name where that is known; ``series`` has every comm that it has.

    Names come from jobs and may contradict each other: one is taken.
    """
    names = f"topk by (comm) (1, max by (comm, comm_name) (rankwatch_communicator_info{{{JOB}}}))"
    return (
        f"({expression})\n  * on (comm) group_left (comm_name) (\n"
        f"    {names}\n      or on (comm)\n    group by (comm) ({series})\n  )"
    )


def most(count: int, expression: str, by: str, *, over: str, each: str = "", least: bool = False) -> str:
    """Return the expression for its ``count`` greatest (``least``: least) series over the time that is shown.

    ``over`` is their value over that time, ``by`` the labels that tell them apart, ``each``: so many for each of these.
    """
    group = f" by ({each})" if each else ""
    return f"{expression}\n  and on ({by}) {'bottomk' if least else 'topk'}{group} ({count}, {over})"


def over_time(function: str, selector: str) -> str:
    """Return ``function`` (as avg_over_time) of series over all the time that the dashboard shows."""
    return f"{function}({selector}[$__range] @ end())"


def coverage(selector: str, by: str = "") -> str:
    """Return a query for the share of operations that have a record."""
    seen = rate_of("rankwatch_inspector_seen_records_total", selector, by)
    return ratio(seen, f"{seen} + {rate_of('rankwatch_inspector_missing_records_total', selector, by)}")


def as_it_is(series: str) -> str:
    """Return a query for series as they are now."""
    return series


def latest(series: str) -> str:
    """Return a query for series as they were last in the time that is shown, also when they have ended."""
    return f"last_over_time({series}[$__range])"


def endings(selector: str, by: str, when: Callable[[str], str] = as_it_is) -> str:
    """Return a query for when ranks left, in ms since the epoch, by labels of the rank and of how it ended.

    ``when``: those that are still remembered (15 minutes), or all that were in the time shown (``latest``).
    """
    info = when(f"rankwatch_rank_exit_info{{{selector}}}")
    at = when(f"rankwatch_rank_exit_timestamp_seconds{{{selector}}}")
    return f"max by ({by}) (\n  {info} * on (cluster, instance, job_id, rank) group_left ()\n    (1000 * {at})\n)"
