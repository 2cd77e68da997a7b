"""The Launchers dashboard: reports of a job's launcher, queries of RAS, and operations with records."""

from itertools import chain

from grafana.panels import (
    BAD_FROM_ONE,
    HALF,
    NO_RECORDS,
    NO_REPORT,
    NONE_KNOWN,
    THIRD,
    WHOLE,
    Panel,
    Query,
    Size,
    Steps,
    lines,
    stats,
)
from grafana.queries import CLUSTER, JOB, WINDOW, coverage, rate_of
from grafana.tables import rows

LISTED = 64
LISTED_RANKS = 256
SHOWN_RANKS = 8
RULE_INTERVAL = "60s"


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    rows_by_title = {
        "NVRx": _nvrx(),
        "Phases of a NIXL-EP run": _nixl_ep(),
        "madengine": _madengine(),
        "How RAS is queried": _ras_queries(),
        "Records": _records(),
    }
    for panel in chain.from_iterable(rows_by_title.values()):
        panel.interval(RULE_INTERVAL)
    return rows_by_title


def _nvrx() -> list[Panel]:
    kills = f"max by (rank, kind) (rankwatch_nvrx_heartbeat_timeouts_total{{{JOB}}})"
    return [
        stats(
            "NVRx restarts",
            "Number of the launchers' restart cycle, number of nodes that take part or stand by, and duration of "
            "the last restart.",
            Query(f"max(rankwatch_nvrx_cycle{{{JOB}}})", "cycle"),
            Query(f"max by (role) (rankwatch_nvrx_nodes{{{JOB}}})", "{{role}} nodes"),
            Query(f"max by (until) (rankwatch_recovery_seconds{{{JOB}}})", "until {{until}}"),
            size=THIRD,
            by_query={"C": {"unit": "s"}},
            nothing="no run under NVRx",
        ),
        rows(
            "Launchers' events",
            "Events of restarts in the launchers' logs, and how often each event came.",
            Query(f"max by (event) (rankwatch_nvrx_events_total{{{JOB}}})"),
            columns=("event",),
            value="times",
        ),
        rows(
            "Ranks that NVRx gave up",
            f"Ranks that NVRx's monitor killed, with the missed heartbeat or section; {LISTED} at most.",
            Query(f"topk({LISTED}, {kills})"),
            columns=("rank", "kind"),
            value="times",
            links_to_rank=True,
        ),
        lines(
            "Speed of GPUs by NVRx's straggler reports",
            "Scores from the reports, which name the three best ranks and the three worst; 100 % is the best.",
            Query(f"min by (rank, kind) (rankwatch_nvrx_gpu_score{{{JOB}}})", "rank {{rank}}, {{kind}}"),
            unit="percentunit",
            size=WHOLE,
            nothing="no straggler reports",
            links_to_rank=True,
        ),
    ]


def _nixl_ep() -> list[Panel]:
    ended = f'max by (node, rank) (rankwatch_nixl_ep_phase{{{JOB}, event="ended"}})'
    expected = f"max(rankwatch_nixl_ep_expected_ranks{{{JOB}}})"
    begun = f'max by (rank) (rankwatch_nixl_ep_phase{{{JOB}, event="begun"}})'
    ranks = f"{begun} unless on (rank) rankwatch_planned_exit{{{JOB}}}"
    measured = f"rankwatch_nixl_ep_bandwidth_bytes_per_second{{{JOB}}}"
    unmeasured = f'max by (rank) (rankwatch_nixl_ep_phase{{{JOB}, event="ended"}}) unless on (rank) {measured}'
    return [
        stats(
            "NIXL-EP run",
            "The last phase that was completed, by the launcher's log; number of ranks in the plan, of ranks that "
            "no log mentions, and of ranks that ended a phase without a measurement.",
            Query(f'max(rankwatch_nixl_ep_phase{{{JOB}, event="completed"}})', "phase completed"),
            Query(expected, "expected"),
            Query(f"{expected} - (count({ranks}) or vector(0)) > 0", "in no log"),
            Query(f"count({unmeasured})", "without a measurement"),
            size=Size(16, 4),
            overrides={"in no log": BAD_FROM_ONE, "without a measurement": BAD_FROM_ONE},
        ),
        stats(
            "Why it failed",
            "Category of the failure, from the logs of the NIXL-EP run's launcher and ranks.",
            Query(f"max by (category) (rankwatch_nixl_ep_failure_info{{{JOB}}})", "{{category}}"),
            size=Size(8, 4),
            steps=Steps("red", {}),
            names_only=True,
            nothing=NONE_KNOWN,
        ),
        rows(
            "Phases by node and rank",
            f"The phase that each rank ended last; the {LISTED_RANKS} ranks with the lowest phase.",
            Query(f"bottomk({LISTED_RANKS}, {ended})"),
            columns=("node", "rank"),
            value="ended phase",
            size=HALF,
            sort_by="ended phase",
            links_to_rank=True,
        ),
        lines(
            "Dispatch and combine bandwidth of a rank",
            "The ranks' last measurements: mean and slowest, by stage (combined: both stages together).",
            Query(f"avg by (stage) ({measured})", "mean, {{stage}}"),
            Query(f"min by (stage) ({measured})", "slowest, {{stage}}"),
            unit="Bps",
            nothing="no NIXL-EP run",
            size=HALF,
        ),
    ]


def _madengine() -> list[Panel]:
    return [
        rows(
            "madengine's tasks",
            "Progress of each node's task, from its log and its processes.",
            Query(f"max by (node_rank, state) (rankwatch_madengine_task_state{{{JOB}}})"),
            columns=("node_rank", "state"),
            nothing="no run of madengine",
        ),
        rows(
            "Measurements",
            f"Results of the run by model and metric, {LISTED} at most, in the unit that the metric names.",
            Query(f"topk({LISTED}, max by (model, metric) (rankwatch_madengine_performance{{{JOB}}}))"),
            columns=("model", "metric"),
            value="result",
            unit="short",
            sort_by="model",
        ),
        stats(
            "Wrong verdicts",
            "Tasks that madengine counts as a success, though they were lost, failed, or had a dead rank.",
            Query(f"count by (reason) (rankwatch_madengine_contradicted{{{JOB}}} == 1)", "{{reason}}"),
            size=THIRD,
            by_query={"A": BAD_FROM_ONE},
            nothing=NONE_KNOWN,
        ),
    ]


def _ras_queries() -> list[Panel]:
    of_its_nodes = f"and on (cluster, node) rankwatch_ras_reporter{{{JOB}}}"
    return [
        rows(
            "Nodes that query",
            "The node of rank 0 is the reporter. The node of the last rank is the standby, and queries a quarter as "
            "often.",
            Query(f'max by (node, role) (rankwatch_ras_reporter{{{JOB}, role!="none"}})'),
            columns=("node", "role"),
            size=Size(6),
            sort_by="role",
        ),
        lines(
            "Nodes that do not query",
            "Number of nodes by reason. not_elected is normal for all nodes but two. Any other reason means that "
            "the job has no reporter or no standby.",
            Query(f"count by (reason) (rankwatch_ras_not_asked{{{JOB}}})", "{{reason}}"),
            unit="short",
            nothing=NO_REPORT,
            size=Size(6),
        ),
        lines(
            "Age of the last report",
            "For each node that queries. interval: time between two queries; the agent queries large jobs rarely.",
            Query(
                f"time() - max by (cluster, node) (rankwatch_ras_report_timestamp_seconds{{{JOB}}})", "age, {{node}}"
            ),
            Query(f"max by (node) (rankwatch_ras_interval_seconds{{{JOB}}})", "interval, {{node}}"),
            unit="s",
            nothing=NO_REPORT,
            size=Size(6),
        ),
        lines(
            "Events",
            "Messages of RAS by kind, on the node that received the most. Number of queries without a report since "
            "the last report.",
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


def _records() -> list[Panel]:
    lost = f"sum by (rank) (increase(rankwatch_inspector_missing_records_total{{{JOB}}}[$__range]))"
    return [
        lines(
            "Operations without a record, by cause",
            "overflow: Inspector's ring buffer was full; a shorter dump interval helps. one_slot: NCCL 2.28 and "
            "2.29 store one operation between two dumps. filtered_or_lost: by default mostly operations below 8 KiB.",
            Query(rate_of("rankwatch_inspector_missing_records_total", JOB, "cause"), "{{cause}}"),
            unit="ops",
            nothing=NO_RECORDS,
        ),
        lines(
            "Coverage",
            "Share of operations with a record: only these count in the bandwidth. By default operations below 8 "
            "KiB have no record.",
            Query(coverage(JOB), "coverage"),
            unit="percentunit",
            nothing=NO_RECORDS,
            most=1,
        ),
        rows(
            "Most operations without a record",
            f"The {SHOWN_RANKS} ranks with the most operations without a record in the time shown.",
            Query(f"topk({SHOWN_RANKS}, {lost})"),
            columns=("rank",),
            value="without a record",
            unit="short",
            links_to_rank=True,
        ),
    ]
