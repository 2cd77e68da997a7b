"""The Job dashboard: is the job whole, how fast is it, which rank does it wait for."""

from __future__ import annotations

from itertools import chain

from grafana import job_goodput, job_head, job_members, job_ras, job_speed
from grafana.cells import grid, timeline
from grafana.panels import NO_RECORDS, Panel, Query, Size, Steps, fixed, lines, rows, stats
from grafana.queries import (
    CLUSTER,
    JOB,
    STATES,
    bus_bandwidth,
    coverage,
    endings,
    rank_state_code,
    rank_states_count,
    silence,
    worst_rank_states,
)

FOLDED = frozenset(
    {
        "Communicators, as the ranks see each other (RAS)",
        "Members",
        "Pairs of ranks",
        "The fabric's own time",
    }
)
"""Rows that are closed until somebody opens them: they ask nothing before, and most jobs have nothing in them."""
RULE_INTERVAL = "60s"
"""As often as the slower rules are evaluated: more points would show nothing more, and 10,000 ranks make them dear."""
GRID_RANKS = 256
"""In so many cells a number can be read."""
TIMELINE_RANKS = 32
SHOWN_RANKS = 8
LISTED = 32

HALF = Size(12)

ON_NODES = 'job_id="", node!=""'
ALERT = ("alertname", "severity", "alertstate", "node", "domain")
BEHIND = ("rank", "node", "what", "operation", "description", "process_group")


def panels(late_share: float) -> dict[str, list[Panel]]:
    """Return the panels by row title; ``late_share``: from this share of wall time on a rank counts as late."""
    rows_by_title = {
        "": [
            *job_head.sentences(),
            *_summary(),
            *job_speed.today(),
            *job_head.panels(late_share),
            *_ranks(),
            *_events(),
        ],
        "Bandwidth": job_speed.bandwidth(),
        "Late ranks": job_speed.late(late_share),
        "The fabric's own time": job_speed.fabric(),
        "Pairs of ranks": job_speed.pairs(),
        "Progress": _progress(),
        "Where the GPUs' time goes": job_goodput.panels(),
        "Members": job_members.panels(),
        "Communicators, as the ranks see each other (RAS)": job_ras.panels(),
    }
    for panel in chain.from_iterable(rows_by_title.values()):
        panel.interval(RULE_INTERVAL)
    return rows_by_title


def _summary() -> list[Panel]:
    colors = {state: {"color": fixed(value.color)} for state, value in STATES.items()}
    return [
        stats(
            "Ranks",
            "Ranks of the job on all nodes, by state. A rank that lives again elsewhere is not counted as gone.",
            Query(rank_states_count("state", JOB), "{{state}}"),
            unit="none",
            size=Size(7, 4),
            overrides=colors,
        ),
        stats(
            "Expected and present",
            "Ranks that the job should have (world size, or the communicators' size), and those that live.",
            Query(f"job:rankwatch_ranks_expected:max{{{JOB}}}", "expected"),
            Query(f"job:rankwatch_ranks_live:sum{{{JOB}}}", "present"),
            unit="none",
            size=Size(5, 4),
        ),
        stats(
            "Age",
            "Time since the first rank's process started.",
            Query(f"time() - min(rankwatch_rank_start_timestamp_seconds{{{JOB}}})"),
            unit="s",
            size=Size(4, 4),
        ),
        stats(
            "Silence",
            "Time since any rank last completed an operation, as far as there are records.",
            Query(f"job:rankwatch_silence:seconds{{{JOB}}}"),
            unit="s",
            size=Size(4, 4),
            steps=Steps("green", {60: "yellow", 300: "red"}),
        ),
        stats(
            "Bus bandwidth",
            "Mean bus bandwidth of all collectives over five minutes, weighted by time; and the present share of "
            "operations with a record, which it rests on.",
            Query(bus_bandwidth("job_id", JOB), "bandwidth"),
            Query(coverage(JOB), "coverage"),
            unit="Bps",
            size=Size(4, 4),
            overrides={"coverage": {"unit": "percentunit"}},
        ),
    ]


def _ranks() -> list[Panel]:
    return [
        grid(
            "Ranks now",
            "Each rank's state: green alive, blue finished, yellow exited, purple unknown, orange "
            f"unresponsive, red dead. In larger jobs the {GRID_RANKS} worst. A click leads to the rank.",
            Query(f"topk({GRID_RANKS}, {rank_state_code()})"),
            size=HALF,
            states=STATES,
            limit=GRID_RANKS,
        ),
        timeline(
            "Ranks over time",
            f"The states of the {TIMELINE_RANKS} ranks that were worst in the time shown.",
            Query(worst_rank_states(TIMELINE_RANKS), "{{rank}}"),
            size=HALF,
            states=STATES,
            links_to_rank=True,
        ),
    ]


def _events() -> list[Panel]:
    return [
        rows(
            "Ranks that left",
            f"When and how ranks ended: the first {LISTED}, for 15 minutes after their end.",
            Query(f"bottomk({LISTED}, {endings(JOB, 'rank, node, reason, signal, code')})"),
            columns=("rank", "node", "reason", "signal", "code"),
            value="left at",
            unit="dateTimeAsIso",
            size=HALF,
            sort_by="left at",
            links_to_rank=True,
        ),
        rows(
            "Alerts",
            "Alerts of this job and of the nodes it runs on, pending or firing.",
            Query(
                f"max by ({', '.join(ALERT)}) (\n"
                f"  ALERTS{{{JOB}}}\n    or\n"
                f"  ALERTS{{{CLUSTER}, {ON_NODES}}} and on (cluster, node) rankwatch_rank_up{{{JOB}}}\n"
                f")"
            ),
            columns=ALERT,
            size=HALF,
            sort_by="alertstate",
        ),
        rows(
            "By its own log",
            "Lines of the job's log that tell of a failure or an end, by what they mean. root: can be the cause, "
            "cascade: follows from another's failure. The job's user writes them.",
            Query(f"topk({LISTED}, max by (role, category, rank) (rankwatch_job_log_events_total{{{JOB}}}))"),
            columns=("role", "category", "rank"),
            value="lines",
            size=HALF,
            sort_by="role",  # a root stands above a cascade
            descending=True,
        ),
        stats(
            "First cause by its own log",
            "The first line that can be the cause, or, where none can, that it was planned or that others failed.",
            Query(_by_its_log(), "{{category}}, rank {{rank}} {{host}} {{advice}}"),
            unit="none",
            size=HALF,
            steps=Steps("yellow", {}),
            names_only=True,
            nothing="no cause",
        ),
    ]


def _by_its_log() -> str:
    """Return the first line of the job's log that can be the cause; else one that tells of a plan or of others."""
    first = f"rankwatch_job_log_first_root_info{{{JOB}}}"
    at = f"rankwatch_job_log_first_root_timestamp_seconds{{{JOB}}}"
    planned = f'rankwatch_job_log_events_total{{{JOB}, role="planned"}}'
    cascade = f"rankwatch_job_log_first_cascade_info{{{JOB}}}"
    return (
        "max by (category, rank, host, advice) (\n"
        f"  bottomk(1, {first} * on (cluster, instance, job_id) group_left () {at})\n    or on ()\n"
        f"  topk(1, max by (category) ({planned}))\n    or on ()\n  topk(1, {cascade})\n)"
    )


def _progress() -> list[Panel]:
    behind = f"max by ({', '.join(BEHIND)}) (rank:rankwatch_flight_recorder_behind:sequence{{{JOB}}})"
    return [
        lines(
            "Since the last operation",
            "Time since the live rank that is furthest ahead, and the one furthest behind, completed an operation.",
            Query(f"max({silence(JOB)})", "furthest behind"),
            Query(f"max(job:rankwatch_silence:seconds{{{JOB}}})", "furthest ahead"),
            unit="s",
            nothing=NO_RECORDS,
            size=HALF,
        ),
        rows(
            "Furthest behind",
            f"The {SHOWN_RANKS} live ranks that have been without a completed operation for longest: the first to fall "
            f"silent when a job hangs.",
            Query(f"topk({SHOWN_RANKS}, max by (rank) ({silence(JOB)}))"),
            columns=("rank",),
            value="silent for",
            unit="s",
            size=HALF,
            sort_by="silent for",
            descending=True,
            links_to_rank=True,
        ),
        rows(
            "By flight recorders: who held the others up",
            f"From PyTorch's dumps, {LISTED} ranks at most. Against the others of a process group the rank had "
            "not_begun the collective that they waited in, had not_finished it, or differs: it called another "
            "operation, type or size.",
            Query(f"topk({LISTED}, {behind})"),
            columns=BEHIND,
            value="collective no.",
            size=Size(24, 6),
            sort_by="rank",
            links_to_rank=True,
            nothing="nobody, or no dumps",
        ),
        rows(
            "Where the ranks' Python code is",
            "While the job completes nothing, where the exporter stacks is on: the innermost calls of each stack, and "
            "how many ranks are there. A rank that is alone may be the one the others wait for.",
            Query(f"topk({LISTED}, max by (stack) (stack:rankwatch_ranks:count{{{JOB}}}))"),
            columns=("stack",),
            value="ranks",
            size=HALF,
            sort_by="ranks",
            descending=True,
            nothing="the job goes on, or stacks are off",
        ),
        rows(
            "Ranks whose Python code is elsewhere",
            f"Ranks with a stack that few or none share, while most share another; {LISTED} at most.",
            Query(f"topk({LISTED}, max by (rank, node, stack) (rank:rankwatch_stack_elsewhere:info{{{JOB}}}))"),
            columns=("rank", "node", "stack"),
            size=HALF,
            sort_by="rank",
            links_to_rank=True,
            nothing="nobody, or stacks are off",
        ),
    ]
