"""The Job dashboard's rows on runs under NVRx and madengine: what these say themselves."""

from __future__ import annotations

from grafana.panels import BAD_FROM_ONE, NONE_KNOWN, Panel, Query, Size, lines, rows, stats
from grafana.queries import JOB

LISTED = 64
THIRD = Size(8)


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
            "What the launchers wrote about restarts, each event with how often.",
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
            "As the reports rate it, 100 % is the best; they name the three best ranks and the three worst.",
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
            "How far the task of each node is, by its log and its processes.",
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
            "Tasks that madengine's rules make a success of, though they were lost, failed, or a rank of theirs died.",
            Query(f"count by (reason) (rankwatch_madengine_contradicted{{{JOB}}} == 1)", "{{reason}}"),
            unit="none",
            size=THIRD,
            by_query={"A": BAD_FROM_ONE},
            nothing=NONE_KNOWN,
        ),
    ]
