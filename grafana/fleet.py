"""The Fleet dashboard: where to look first, over all jobs and nodes of a cluster."""

from __future__ import annotations

from grafana.cells import grid
from grafana.job_goodput import COLORS
from grafana.panels import (
    BAD_FROM_ONE,
    Panel,
    Query,
    Size,
    Steps,
    lines,
    node_link,
    rows,
    stats,
)
from grafana.queries import CLUSTER, Value, over_time

QUARTER = Size(6, 4)
HALF = Size(12)
LISTED = 64
CELLS = 1024
LOST_RANKS = (
    f"node:rankwatch_ranks_lost:count{{{CLUSTER}}} and on (cluster, node) node:rankwatch_lost:bool{{{CLUSTER}}}"
)

NODES = {"silent": Value(-1, "purple"), "unhealthy": Value(0, "red"), "healthy": Value(1, "green")}


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {
        "": [*_summary(), *_trouble()],
        "Jobs": _jobs(),
        "Nodes": _nodes(),
        "Where the GPUs' time goes": _time(),
    }


def firing(severity: str) -> str:
    """Return a query for how many alerts of a severity fire."""
    return f'count(ALERTS{{{CLUSTER}, severity="{severity}", alertstate="firing"}}) or vector(0)'


def _summary() -> list[Panel]:
    return [
        stats(
            "Open alerts",
            "Alerts that fire now: pages wake somebody, tickets wait for the day.",
            Query(firing("page"), "pages"),
            Query(firing("ticket"), "tickets"),
            unit="none",
            size=QUARTER,
            overrides={
                "pages": BAD_FROM_ONE,
                "tickets": {"thresholds": Steps("green", {1: "yellow"}).build().build()},
            },
            nothing="none",
        ),
        stats(
            "Jobs",
            "Jobs with live ranks, and those of them that have a dead rank.",
            Query(f"count(job:rankwatch_up:bool{{{CLUSTER}}})", "run"),
            Query(f"count(group by (cluster, job_id) ({_gone('dead')}))", "with dead ranks"),
            unit="none",
            size=QUARTER,
            overrides={"with dead ranks": BAD_FROM_ONE},
        ),
        stats(
            "Ranks",
            "Live ranks of all jobs, and those that are dead.",
            Query(f"sum(job:rankwatch_ranks_live:count{{{CLUSTER}}})", "live"),
            Query(f"count({_gone('dead')})", "dead"),
            unit="none",
            size=QUARTER,
            overrides={"dead": BAD_FROM_ONE},
        ),
        stats(
            "Nodes",
            "Nodes whose agent answers, and those of them on which a check that counts has failed.",
            Query(f"count(node:rankwatch_heard:bool{{{CLUSTER}}})", "answer"),
            Query(f"sum(1 - rankwatch_node_healthy{{{CLUSTER}}})", "unhealthy"),
            unit="none",
            size=QUARTER,
            overrides={"unhealthy": BAD_FROM_ONE},
        ),
    ]


def _gone(state: str) -> str:
    return f'rank:rankwatch_gone:state{{{CLUSTER}, state="{state}"}}'


def _trouble() -> list[Panel]:
    labels = ("alertname", "severity", "job_id", "node")
    return [
        rows(
            "Alerts that fire",
            "What people were told, of jobs and of nodes; a click leads to either.",
            Query(f'max by ({", ".join(labels)}) (ALERTS{{{CLUSTER}, alertname!="Watchdog", alertstate="firing"}})'),
            columns=labels,
            size=HALF,
            sort_by="severity",
            nothing="none",
        ),
        rows(
            "Jobs in trouble",
            "How many ranks of which jobs are dead, on lost nodes, unresponsive, missed by the others (RAS), on failed "
            "hardware or late, and the live ranks of jobs that complete nothing for longer than ever.",
            Query(
                _as(f"count by (cluster, job_id) ({_gone('dead')})", "dead")
                + "\n  or\n"
                + _as(
                    f'count by (cluster, job_id) (rank:rankwatch_running:state{{{CLUSTER}, state="unresponsive"}})',
                    "unresponsive",
                )
                + "\n  or\n"
                + _as(f"max by (cluster, job_id) (job:rankwatch_ranks_missing:count{{{CLUSTER}}}) > 0", "missing")
                + "\n  or\n"
                + _as(f"sum by (cluster, job_id) ({LOST_RANKS})", "lost with a node")
                + "\n  or\n"
                + _as(f"job:rankwatch_unhealthy:count{{{CLUSTER}}}", "on failed hardware")
                + "\n  or\n"
                + _as(
                    f"job:rankwatch_ranks_live:count{{{CLUSTER}}}"
                    f" and on (cluster, job_id) job:rankwatch_stalled:seconds{{{CLUSTER}}}",
                    "silent",
                )
                + "\n  or\n"
                + _as(f"count by (cluster, job_id) (rank:rankwatch_late:bool{{{CLUSTER}}})", "late")
            ),
            columns=("job_id", "cluster", "trouble"),
            value="ranks",
            size=HALF,
            sort_by="ranks",
            descending=True,
            nothing="none",
        ),
    ]


def _as(expression: str, trouble: str) -> str:
    """Return the expression with a label that says what its series count."""
    return f'label_replace({expression}, "trouble", "{trouble}", "", "")'


def _jobs() -> list[Panel]:
    facts = ("job_id", "cluster", "name", "user", "partition")
    return [
        rows(
            "Jobs, by ranks",
            f"The {LISTED} largest jobs with live ranks, their owners and how many ranks they have.",
            Query(
                f"topk({LISTED}, max by ({', '.join(facts)}) (\n"
                f"  rankwatch_job_info{{{CLUSTER}}} * on (cluster, job_id) group_left ()\n"
                f"    job:rankwatch_ranks_live:count{{{CLUSTER}}}\n))"
            ),
            columns=facts,
            value="ranks",
            size=HALF,
            sort_by="ranks",
            descending=True,
        ),
        rows(
            "Jobs, by age",
            f"Since when the {LISTED} oldest jobs run, as their first live rank tells.",
            Query(
                f"1000 * bottomk({LISTED}, min by (job_id, cluster) (job:rankwatch_running_since:seconds{{{CLUSTER}}}))"
            ),
            columns=("job_id", "cluster"),
            value="since",
            unit="dateTimeAsIso",
            size=Size(6),
            sort_by="since",
        ),
        rows(
            "Jobs, by goodput",
            f"Share of the last six hours' GPU time that went into work that lasts; the {LISTED} lowest.",
            Query(f"bottomk({LISTED}, max by (job_id, cluster) (job:rankwatch_goodput:ratio{{{CLUSTER}}}))"),
            columns=("job_id", "cluster"),
            value="goodput",
            unit="percentunit",
            size=Size(6),
            sort_by="goodput",
            nothing="not known: no iterations in logs",
        ),
    ]


def _nodes() -> list[Panel]:
    return [
        grid(
            "Nodes by health",
            f"A cell for each node, {CELLS} at most: unhealthy while a check that counts has failed, silent while its "
            "agent cannot be scraped.",
            Query(
                f"min by (node) (rankwatch_node_healthy{{{CLUSTER}}})\n  or\n"
                f"min by (node) (0 * node:rankwatch_silent:seconds{{{CLUSTER}}} - 1)"
            ),
            label="node",
            size=Size(16, 10),
            states=NODES,
            limit=CELLS,
            link=node_link("node"),
            nothing="no node is checked",
        ),
        rows(
            "Nodes that fail again and again",
            "Points of the last seven days: two for each job that a node's hardware ended first, one for other deaths. "
            "From five on it is a lemon.",
            Query(f"topk({LISTED}, max by (node, cluster) (node:rankwatch_lemon_points:sum7d{{{CLUSTER}}}))"),
            columns=("node", "cluster"),
            value="points",
            size=Size(8, 10),
            sort_by="points",
            descending=True,
            nothing="none",
        ),
    ]


def _time() -> list[Panel]:
    hours = over_time("increase", f"job:rankwatch_gpu_seconds:total{{{CLUSTER}}}")
    return [
        lines(
            "What the GPUs' time goes into",
            "Share of all jobs' GPU time by class: each second is in exactly one.",
            Query(
                "sum by (class) (rate(job:rankwatch_gpu_seconds:total"
                f"{{{CLUSTER}}}[$__rate_interval]))\n  / ignoring (class) group_left ()\n"
                f"sum(rate(job:rankwatch_gpu_seconds:total{{{CLUSTER}}}[$__rate_interval]))",
                "{{class}}",
            ),
            unit="percentunit",
            size=HALF,
            most=1,
            stacked=True,
            colors=COLORS,
        ),
        rows(
            "GPU-hours by class",
            "Hours of all jobs' GPUs in the time that is shown.",
            Query(f"sum by (class) ({hours}) / 3600"),
            columns=("class",),
            value="hours",
            unit="short",
            size=Size(6),
            sort_by="hours",
            descending=True,
        ),
        stats(
            "Mean times, of seven days",
            "From one interruption of a job to the next, and from an interruption to work again.",
            Query(f"min(cluster:rankwatch_mttf:seconds{{{CLUSTER}}})", "to an interruption"),
            Query(f"max(cluster:rankwatch_mttr:seconds{{{CLUSTER}}})", "to recovery"),
            unit="s",
            size=Size(6),
            nothing="no interruption",
        ),
    ]
