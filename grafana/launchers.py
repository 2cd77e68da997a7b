"""The Launchers dashboard: reports of a job's launcher, queries of RAS, and operations with records."""

from __future__ import annotations

from itertools import chain

from grafana import job_members, job_ras
from grafana.panels import BAD_FROM_ONE, NO_RECORDS, NONE_KNOWN, Panel, Query, Size, lines, stats
from grafana.queries import JOB, coverage, rate_of
from grafana.tables import rows

LISTED = 64
SHOWN_RANKS = 8
RULE_INTERVAL = "60s"
"""Interval of the slower rules."""
HALF, THIRD = Size(12), Size(8)


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    rows_by_title = {
        "NVRx": nvrx(),
        "Phases of a NIXL-EP run": job_members.phases(),
        "madengine": madengine(),
        "How RAS is queried": job_ras.asking(),
        "Records": _records(),
    }
    for panel in chain.from_iterable(rows_by_title.values()):
        panel.interval(RULE_INTERVAL)
    return rows_by_title


def nvrx() -> list[Panel]:
    """Return the row on NVRx."""
    kills = f"max by (rank, kind) (rankwatch_nvrx_heartbeat_timeouts_total{{{JOB}}})"
    return [
        stats(
            "NVRx restarts",
            "The restart cycle that the launchers are in, the nodes that take part and that stand by, and how long "
            "the last restart took.",
            Query(f"max(rankwatch_nvrx_cycle{{{JOB}}})", "cycle"),
            Query(f"max by (role) (rankwatch_nvrx_nodes{{{JOB}}})", "{{role}} nodes"),
            Query(f"max by (until) (rankwatch_recovery_seconds{{{JOB}}})", "until {{until}}"),
            unit="none",
            size=THIRD,
            by_query={"C": {"unit": "s"}},
            nothing="no run under NVRx",
        ),
        rows(
            "Launchers' events",
            "Events of restarts from the launchers' logs, with their number.",
            Query(f"max by (event) (rankwatch_nvrx_events_total{{{JOB}}})"),
            columns=("event",),
            value="times",
            size=THIRD,
            sort_by="times",
            descending=True,
        ),
        rows(
            "Ranks that NVRx gave up",
            f"Whose monitor killed them, and which heartbeat or section it missed; {LISTED} at most.",
            Query(f"topk({LISTED}, {kills})"),
            columns=("rank", "kind"),
            value="times",
            size=THIRD,
            sort_by="times",
            descending=True,
            links_to_rank=True,
        ),
        lines(
            "Speed of GPUs by NVRx's straggler reports",
            "Scores from the reports, which name the three best ranks and the three worst; 100 % is the best.",
            Query(f"min by (rank, kind) (rankwatch_nvrx_gpu_score{{{JOB}}})", "rank {{rank}}, {{kind}}"),
            unit="percentunit",
            size=Size(24),
            nothing="no straggler reports",
            links_to_rank=True,
        ),
    ]


def madengine() -> list[Panel]:
    """Return the row on madengine."""
    return [
        rows(
            "madengine's tasks",
            "Progress of each node's task, from its log and its processes.",
            Query(f"max by (node_rank, state) (rankwatch_madengine_task_state{{{JOB}}})"),
            columns=("node_rank", "state"),
            size=THIRD,
            sort_by="node_rank",
            nothing="no run of madengine",
        ),
        rows(
            "What it measured",
            f"Results of the run by model and metric, {LISTED} at most, in the unit that the metric names.",
            Query(f"topk({LISTED}, max by (model, metric) (rankwatch_madengine_performance{{{JOB}}}))"),
            columns=("model", "metric"),
            value="result",
            unit="short",
            size=THIRD,
            sort_by="model",
        ),
        stats(
            "Where its verdict is wrong",
            "Tasks that madengine counts as a success, though they were lost, failed, or had a dead rank.",
            Query(f"count by (reason) (rankwatch_madengine_contradicted{{{JOB}}} == 1)", "{{reason}}"),
            unit="none",
            size=THIRD,
            by_query={"A": BAD_FROM_ONE},
            nothing=NONE_KNOWN,
        ),
    ]


def _records() -> list[Panel]:
    lost = f"sum by (rank) (increase(rankwatch_inspector_missing_records_total{{{JOB}}}[$__range]))"
    return [
        lines(
            "Operations without a record, by cause",
            "overflow: Inspector's ring was full, dump more often. one_slot: NCCL 2.28 and 2.29 keep one "
            "operation between two dumps. filtered_or_lost: mostly operations below 8 KiB, by default.",
            Query(rate_of("rankwatch_inspector_missing_records_total", JOB, "cause"), "{{cause}}"),
            unit="ops",
            nothing=NO_RECORDS,
            size=THIRD,
        ),
        lines(
            "Coverage",
            "Share of operations with a record, from which bandwidth is computed. By default operations below 8 KiB "
            "have none.",
            Query(coverage(JOB), "coverage"),
            unit="percentunit",
            nothing=NO_RECORDS,
            size=THIRD,
            most=1,
        ),
        rows(
            "Most operations without a record",
            f"The {SHOWN_RANKS} ranks with most of them in the time shown.",
            Query(f"topk({SHOWN_RANKS}, {lost})"),
            columns=("rank",),
            value="without a record",
            unit="short",
            size=THIRD,
            sort_by="without a record",
            descending=True,
            links_to_rank=True,
        ),
    ]
