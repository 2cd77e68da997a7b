"""The Fleet dashboard: the first place to look, over all jobs and nodes of a cluster."""

from grafana.cells import grid
from grafana.job_goodput import COLORS, class_hours, class_shares, goodput
from grafana.panels import BAD_FROM_ONE, HALF, ODD_FROM_ONE, WHOLE, Panel, Query, Size, board_link, lines, stats
from grafana.queries import CLUSTER, Value, firing, jobs_that_died_first
from grafana.tables import Column, rows

LISTED = 64
CELLS = 1024
LIVE = f"job:rankwatch_ranks_live:sum{{{CLUSTER}}}"
DEAD = f"rank:rankwatch_dead:time{{{CLUSTER}}} and on (cluster, job_id) {LIVE}"
"""First deaths in jobs that run, or ended less than 15 minutes ago."""
SUSPECTS = f"max by (cluster, job_id, rank) (rank:rankwatch_suspect:bool{{{CLUSTER}}})"
STRUCK = f"max by (cluster, job_id, rank) (rank:rankwatch_struck:bool{{{CLUSTER}}})"
STALLED = f"job:rankwatch_stalled:seconds{{{CLUSTER}}}"
STATE = f'rankwatch_rank_state{{{CLUSTER}, state="unresponsive"}}'

NODES = {"silent": Value(-1, "purple"), "unhealthy": Value(0, "red"), "healthy": Value(1, "green")}


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {"": [*_summary(), *_trouble()], "Jobs": _jobs(), "Nodes": _nodes(), "GPU time": _time()}


def alerts(severity: str) -> str:
    """Return a query for the number of firing alerts of a severity."""
    return f'count(ALERTS{{{CLUSTER}, severity="{severity}", alertstate="firing"}}) or vector(0)'


def _summary() -> list[Panel]:
    return [
        stats(
            "Open alerts",
            "Firing alerts: pages wake a person, tickets wait for the day.",
            Query(alerts("page"), "pages"),
            Query(alerts("ticket"), "tickets"),
            overrides={"pages": BAD_FROM_ONE, "tickets": ODD_FROM_ONE},
            nothing="none",
        ),
        stats(
            "Jobs",
            "Jobs with live ranks; and jobs with a dead rank, until 15 minutes after their end.",
            Query(f"count({LIVE} > 0)", "run"),
            Query(f"count(group by (cluster, job_id) ({DEAD}))", "with dead ranks"),
            overrides={"with dead ranks": BAD_FROM_ONE},
        ),
        stats(
            "Ranks",
            "Live ranks of all jobs, and the ranks that died first in each job.",
            Query(f"sum({LIVE})", "live"),
            Query(f"count({DEAD})", "dead"),
            overrides={"dead": BAD_FROM_ONE},
        ),
        stats(
            "Nodes",
            "Nodes whose agent answers, and nodes on which a check that counts has failed.",
            Query(f"count(node:rankwatch_heard:time{{{CLUSTER}}})", "answer"),
            Query(f"sum(1 - rankwatch_node_healthy{{{CLUSTER}}})", "unhealthy"),
            overrides={"unhealthy": BAD_FROM_ONE},
        ),
    ]


def _trouble() -> list[Panel]:
    labels = ("alertname", "severity", "job_id", "node", "cluster")
    return [
        rows(
            "Alerts that fire",
            "Firing alerts of jobs and nodes. A click leads to the job or the node.",
            Query(f'max by ({", ".join(labels)}) (ALERTS{{{CLUSTER}, alertname!="Watchdog", alertstate="firing"}})'),
            columns=labels,
            size=HALF,
            sort_by="severity",
            nothing="none",
        ),
        rows(
            "Jobs in trouble",
            "Number of ranks of each job that died first, are unresponsive, block a collective (by RAS), run on "
            "failed hardware or are late; number of lost nodes of the job; and number of live ranks, if the job has "
            "completed nothing for longer than its longest earlier pause.",
            Query(
                "\n  or\n".join(
                    (
                        _as(f"count by (cluster, job_id) ({DEAD})", "dead ranks"),
                        _as(f"count by (cluster, job_id) ({STATE})", "unresponsive ranks"),
                        _as(f"count by (cluster, job_id) ({SUSPECTS})", "ranks waited for (RAS)"),
                        _as(f"count by (cluster, job_id) ({firing('NodeLost', CLUSTER)})", "lost nodes"),
                        _as(f"count by (cluster, job_id) ({STRUCK})", "ranks on failed hardware"),
                        _as(f"{LIVE} and on (cluster, job_id) {STALLED}", "silent ranks"),
                        _as(f"count by (cluster, job_id) ({firing('StragglerRank', CLUSTER)})", "late ranks"),
                    )
                )
            ),
            columns=("job_id", "cluster", "trouble"),
            value="count",
            size=HALF,
            nothing="none",
        ),
    ]


def _as(expression: str, trouble: str) -> str:
    """Return the expression with a label that says what the series count."""
    return f'label_replace({expression}, "trouble", "{trouble}", "", "")'


def _jobs() -> list[Panel]:
    facts = ("job_id", "cluster", "name", "user", "partition")
    largest = f"topk({LISTED}, {LIVE} > 0)"
    since = f"1000 * max by (job_id, cluster) (job:rankwatch_run:time{{{CLUSTER}}} and on (cluster, job_id) {largest})"
    named = (
        f"max by ({', '.join(facts)}) (\n"
        f"  rankwatch_job_info{{{CLUSTER}}} * on (cluster, job_id) group_left ()\n    ({largest})\n)"
    )
    return [
        rows(
            "Jobs",
            f"The {LISTED} largest jobs with live ranks, the start of their run, and their goodput: the productive "
            "share of their GPUs' time in the last six hours. Goodput needs a job's log with iterations.",
            Query(named),
            columns=facts,
            value="ranks",
            more=(
                Column("since", Query(since), "dateTimeAsIso"),
                Column("goodput", Query(f"{goodput(CLUSTER)}\n  and on (cluster, job_id) {largest}"), "percentunit"),
            ),
            size=WHOLE,
        )
    ]


def _nodes() -> list[Panel]:
    return [
        grid(
            "Nodes by health",
            f"A cell for each node, {CELLS} at most: unhealthy while a check that counts has failed, silent while its "
            "agent cannot be scraped.",
            Query(
                f"min by (node) (rankwatch_node_healthy{{{CLUSTER}}})\n  or\n"
                f"min by (node) (0 * node:rankwatch_fails:bool{{{CLUSTER}}} - 1)"
            ),
            label="node",
            size=Size(16, 10),
            states=NODES,
            limit=CELLS,
            link=board_link("Node", "node", "__data.fields.node"),
            nothing="no node is checked",
        ),
        rows(
            "Nodes that fail repeatedly",
            f"Number of jobs of the last seven days in which a rank on this node died first, or the node rebooted. The "
            f"{LISTED} worst; the alert LemonNode counts likely hardware failures twice.",
            Query(f"topk({LISTED}, {jobs_that_died_first(CLUSTER)})"),
            columns=("node", "cluster"),
            value="jobs",
            size=Size(8, 10),
            nothing="none",
        ),
    ]


def _time() -> list[Panel]:
    return [
        lines(
            "GPU time by class",
            "Share of all jobs' GPU time by class: each minute of a GPU is in exactly one class.",
            class_shares(CLUSTER),
            unit="percentunit",
            size=HALF,
            most=1,
            stacked=True,
            colors=COLORS,
        ),
        rows(
            "GPU-hours by class",
            "Hours of all jobs' GPUs in the time that is shown.",
            Query(class_hours(CLUSTER)),
            columns=("class",),
            value="hours",
            unit="short",
            size=HALF,
        ),
    ]
