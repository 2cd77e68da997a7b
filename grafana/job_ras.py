"""RAS' reports on a job: the Job dashboard's table of troubled ranks, the Launchers dashboard's row on the queries."""

from __future__ import annotations

from grafana.panels import NO_REPORT, Panel, Query, Size, lines
from grafana.queries import CLUSTER, JOB, WINDOW
from grafana.tables import rows

LISTED = 12
"""Limit of rows for each kind of trouble."""

HALF = Size(12)
PLACE = ("rank", "comm", "comm_rank")
LAST_REPORT = f"max by (cluster, node) (rankwatch_ras_report_timestamp_seconds{{{JOB}}})"
TROUBLES = (
    ("missing", f"rankwatch_communicator_rank_missing{{{JOB}}}"),
    ("waited for", f"rankwatch_communicator_suspect{{{JOB}}}"),
    ("failed", f'rankwatch_communicator_async_error{{{JOB}, phase="run"}}'),
    ("failed to start", f'rankwatch_communicator_async_error{{{JOB}, phase="init"}}'),
    ("aborted", f"rankwatch_communicator_aborted{{{JOB}}}"),
)
"""Kinds of trouble that RAS reports, and the series of the ranks."""


def troubles() -> Panel:
    """Return the table of ranks that communicators miss or wait for, or that failed."""
    columns = ("what", *PLACE, "host", "gpu", "reason", "error")
    either = "\n    or\n".join(f'  label_replace({series}, "what", "{what}", "", "")' for what, series in TROUBLES)
    return rows(
        "By RAS: ranks that communicators miss or wait for, or that failed",
        f"At most {LISTED} of each kind. A rank that was stopped for a minute stays missing until the job ends. "
        "waited for: it has launched fewer operations than others, or does not answer. A remote_error is a victim's.",
        Query(f"topk by (what) ({LISTED}, max by ({', '.join(columns)}) (\n{either}\n))"),
        columns=columns,
        size=Size(24),
        sort_by="what",
    )


def asking() -> list[Panel]:
    """Return the panels on how RAS is queried."""
    of_its_nodes = f"and on (cluster, node) rankwatch_ras_reporter{{{JOB}}}"
    return [
        rows(
            "Nodes that query",
            "The node of rank 0 reports. The node of the last rank stands by, and queries a quarter as often.",
            Query(f'max by (node, role) (rankwatch_ras_reporter{{{JOB}, role!="none"}})'),
            columns=("node", "role"),
            size=Size(6),
            sort_by="role",
        ),
        lines(
            "Nodes that do not query",
            "By reason. not_elected is normal for all nodes but two. Any other reason: no node queries, or none "
            "stands by.",
            Query(f"count by (reason) (rankwatch_ras_not_asked{{{JOB}}})", "{{reason}}"),
            unit="short",
            nothing=NO_REPORT,
            size=Size(6),
        ),
        lines(
            "Age of the last report",
            "By the node that queries. interval: the time from one query to the next; large jobs are queried rarely.",
            Query(f"time() - {LAST_REPORT}", "age, {{node}}"),
            Query(f"max by (node) (rankwatch_ras_interval_seconds{{{JOB}}})", "interval, {{node}}"),
            unit="s",
            nothing=NO_REPORT,
            size=Size(6),
        ),
        lines(
            "Events",
            "Messages of RAS by kind, on the node that received most. Queries without a report since the last report.",
            Query(
                f"max by (event) (increase(rankwatch_ras_events_total{{{CLUSTER}}}{WINDOW}) {of_its_nodes})",
                "{{event}}",
            ),
            Query(f"max(rankwatch_ras_failures{{{JOB}}})", "queries without a report"),
            unit="short",
            nothing=NO_REPORT,
            size=Size(6),
        ),
    ]
