"""The Job dashboard's rows on RAS: who answers, who has launched less, which rank holds up; who asks, how it goes."""

from __future__ import annotations

from grafana.panels import NO_REPORT, Panel, Query, Size, lines, rows
from grafana.queries import CLUSTER, JOB, WINDOW, named

SHOWN_COMMUNICATORS = 5
LISTED = 32

HALF = Size(12)
PLACE = ("rank", "comm", "comm_rank")
LAUNCHED = "comm, collective"
LAST_LAUNCH = f"rankwatch_communicator_last_launch_timestamp_seconds{{{JOB}}}"
LAST_REPORT = f"max by (cluster, node) (rankwatch_ras_report_timestamp_seconds{{{JOB}}})"
STALLED = f"rankwatch_communicator_stalled{{{JOB}}} == 1"

COLORS = {
    "expected": "blue",
    "responding": "green",
    "missing": "yellow",
    "unresponsive": "orange",
    "dead": "red",
}
"""Of ranks, by how they answer."""


def panels() -> list[Panel]:
    """Return the panels on what RAS tells."""
    return [*_answers(), *_launches(), *_hangs()]


def asking() -> list[Panel]:
    """Return the panels on how RAS is asked."""
    return [*_who_asks(), *_queries()]


def _answers() -> list[Panel]:
    missing = f"max by (rank, comm, comm_rank, host, gpu, reason) (rankwatch_communicator_rank_missing{{{JOB}}})"
    return [
        lines(
            "Ranks that answer",
            "Ranks of the job's communicators by the last report, of each state the most in any of them. Missing: "
            "unresponsive ones give no answer, dead ones gave none for a minute; others have left the communicator.",
            Query(
                f'max by (state) (rankwatch_communicator_ranks{{{JOB}, state!~"initializing|finalizing|aborted"}})',
                "{{state}}",
            ),
            unit="short",
            nothing=NO_REPORT,
            size=HALF,
            colors=COLORS,
        ),
        rows(
            "Missing now",
            f"Ranks without an answer, by communicator, {LISTED} at most. A rank that was stopped for a minute stays "
            "dead to the others for ever.",
            Query(f"topk({LISTED}, {missing})"),
            columns=(*PLACE, "host", "gpu", "reason"),
            size=HALF,
            sort_by="rank",
        ),
    ]


def _launches() -> list[Panel]:
    launched = f"rankwatch_communicator_launched_max{{{JOB}}}"
    stalled = f"({LAST_LAUNCH} and on (cluster, comm, node) {STALLED})"
    apart = f"max by ({LAUNCHED}) ({launched}) - max by ({LAUNCHED}) (rankwatch_communicator_launched_min{{{JOB}}})"
    return [
        lines(
            "Launches between the rank furthest ahead and the one furthest behind",
            "A few that change all the time are normal; a difference that stays is a hang. Of each collective the "
            f"{SHOWN_COMMUNICATORS} communicators that are furthest apart.",
            Query(
                named(f"topk by (collective) ({SHOWN_COMMUNICATORS}, {apart})", launched),
                "{{collective}} {{comm_name}} {{comm}}",
            ),
            unit="short",
            nothing=NO_REPORT,
            size=HALF,
        ),
        lines(
            "Since the last launch",
            "From the report that first showed the launches as they are now to the last one: in any communicator, and "
            "in those that are stalled. Not counted: CUDA graphs, sends and receives.",
            Query(
                f"min({LAST_REPORT} - on (cluster, node) max by (cluster, node) ({LAST_LAUNCH}))", "any communicator"
            ),
            Query(f"max by (comm) ({LAST_REPORT} - on (cluster, node) group_right () {stalled})", "stalled {{comm}}"),
            unit="s",
            nothing=NO_REPORT,
            size=HALF,
        ),
    ]


def _hangs() -> list[Panel]:
    suspects = f"max by (rank, comm, comm_rank, host, gpu, reason) (rankwatch_communicator_suspect{{{JOB}}})"
    aborted = f'label_replace(rankwatch_communicator_aborted{{{JOB}}}, "error", "aborted", "", "")'
    errors = (
        "max by (rank, comm, comm_rank, error) (\n"
        f"  rankwatch_communicator_async_error{{{JOB}}}\n    or\n"
        f"  rankwatch_communicator_init_error{{{JOB}}}\n    or\n  {aborted}\n)"
    )
    return [
        rows(
            "Stalled, and waiting for",
            "Ranks that stalled communicators wait for: they have launched less than others, or do not answer. Nobody "
            "where that cannot be told.",
            Query(f"topk({LISTED}, {suspects})"),
            columns=(*PLACE, "host", "gpu", "reason"),
            size=HALF,
            sort_by="comm",
        ),
        rows(
            "Errors and aborts",
            "Ranks whose communicators have failed, could not be made, or are being aborted. A remote_error is a "
            "victim's.",
            Query(f"topk({LISTED}, {errors})"),
            columns=(*PLACE, "error"),
            size=HALF,
            sort_by="error",
        ),
    ]


def _who_asks() -> list[Panel]:
    return [
        rows(
            "Who asks",
            "The nodes that ask: that of rank 0 reports, that of the last rank stands by and asks a quarter as often.",
            Query(f'max by (node, role) (rankwatch_ras_reporter{{{JOB}, role!="none"}})'),
            columns=("node", "role"),
            size=Size(6),
            sort_by="role",
        ),
        lines(
            "Nodes that do not ask",
            "By reason. Not elected: all but two, as it should be. Any other reason means that nobody asks, or nobody "
            "stands by.",
            Query(f"count by (reason) (rankwatch_ras_not_asked{{{JOB}}})", "{{reason}}"),
            unit="short",
            nothing=NO_REPORT,
            size=Size(6),
        ),
        lines(
            "Age of the last report",
            "By the node that asks, beside the time from one query to the next: large jobs are asked seldom. A report "
            "counts for three such times.",
            Query(f"time() - {LAST_REPORT}", "age, {{node}}"),
            Query(f"max by (node) (rankwatch_ras_interval_seconds{{{JOB}}})", "interval, {{node}}"),
            unit="s",
            nothing=NO_REPORT,
            size=HALF,
        ),
    ]


def _queries() -> list[Panel]:
    of_its_nodes = f"and on (cluster, node) rankwatch_ras_reporter{{{JOB}}}"
    return [
        lines(
            "Queries without a report",
            "In a row, since the last report, by the node that asks.",
            Query(f"max by (node) (rankwatch_ras_failures{{{JOB}}})", "{{node}}"),
            unit="short",
            nothing=NO_REPORT,
            size=HALF,
        ),
        lines(
            "Events",
            "What RAS told unasked, by kind, on the node of the job that heard most of it, of all jobs there.",
            Query(
                f"max by (event) (increase(rankwatch_ras_events_total{{{CLUSTER}}}{WINDOW}) {of_its_nodes})",
                "{{event}}",
            ),
            unit="short",
            nothing=NO_REPORT,
            size=HALF,
        ),
    ]
