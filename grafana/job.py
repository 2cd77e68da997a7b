"""The Job dashboard: whether the job is complete, its speed, and the rank that it waits for."""

from itertools import chain

from grafana import job_goodput, job_head, job_speed
from grafana.panels import HALF, WHOLE, Panel, Query, Size
from grafana.queries import CLUSTER, JOB, endings
from grafana.tables import rows

FOLDED = frozenset({"The fabric's own time, and slow pairs", "GPU time", "Members"})
"""Rows that start closed: they send no query until a user opens them."""
RULE_INTERVAL = "60s"
"""Interval of the slower rules: more points would show nothing new, and 10,000 ranks make them expensive."""
LISTED = 32

ON_NODES = 'job_id="", node!=""'
ALERT = ("alertname", "severity", "alertstate", "node", "domain")
LISTED_RANKS = 256
MOST_TROUBLES = 12
"""Limit of rows for each kind of trouble that RAS reports."""
BEHIND = ("rank", "node", "what", "operation", "description", "process_group")

TROUBLES = (
    ("missing", f"rankwatch_communicator_rank_missing{{{JOB}}}"),
    ("waited for", f"rankwatch_communicator_suspect{{{JOB}}}"),
    ("failed", f'rankwatch_communicator_async_error{{{JOB}, phase="run"}}'),
    ("failed to start", f'rankwatch_communicator_async_error{{{JOB}, phase="init"}}'),
    ("aborted", f"rankwatch_communicator_aborted{{{JOB}}}"),
)
"""Kinds of trouble that RAS reports, and the series of the ranks."""


def panels(late_share: float) -> dict[str, list[Panel]]:
    """Return the panels by row title; ``late_share``: from this share of wall time on a rank counts as late."""
    rows_by_title = {
        "": [
            job_head.sentences(),
            *job_head.summary(),
            job_head.ranks_now(),
            job_speed.today(),
            *job_head.over_time(late_share),
            *_events(),
            job_head.owner(),
        ],
        "Bandwidth and late ranks": [job_speed.bandwidth(), *job_speed.late(late_share)],
        "The fabric's own time, and slow pairs": [job_speed.fabric(), job_speed.pairs()],
        "Why it hangs": [*_hang(), _ras_troubles()],
        "GPU time": job_goodput.panels(),
        "Members": [_members()],
    }
    for panel in chain.from_iterable(rows_by_title.values()):
        panel.interval(RULE_INTERVAL)
    return rows_by_title


def _events() -> list[Panel]:
    return [
        rows(
            "Ranks that left",
            f"When and how ranks ended: the first {LISTED} exits, for 15 minutes after each exit.",
            Query(f"bottomk({LISTED}, {endings(JOB, 'rank, node, reason, signal, code')})"),
            columns=("rank", "node", "reason", "signal", "code"),
            value="left at",
            unit="dateTimeAsIso",
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
            sort_by="alertstate",
        ),
        rows(
            "Errors in the job's log",
            "Number of lines in the job's log about a failure or an end. root: the line can be the cause. cascade: "
            "the line follows from another failure. The job's user can write any line.",
            Query(f"topk({LISTED}, max by (role, category, rank) (rankwatch_job_log_events_total{{{JOB}}}))"),
            columns=("role", "category", "rank"),
            value="lines",
            sort_by="role",  # roots sort above cascades
            descending=True,
        ),
    ]


def _hang() -> list[Panel]:
    behind = f"max by ({', '.join(BEHIND)}) (rank:rankwatch_flight_recorder_behind:sequence{{{JOB}}})"
    return [
        rows(
            "By flight recorders: ranks that the others waited for",
            f"From PyTorch's dumps, at most {LISTED} ranks. The other ranks of the process group waited in a "
            "collective. what: this rank had not begun it, had not finished it, or differs (called another "
            "operation, type or size).",
            Query(f"topk({LISTED}, {behind})"),
            columns=BEHIND,
            value="collective no.",
            size=Size(24, 6),
            sort_by="rank",
            links_to_rank=True,
            nothing="none, or no dumps",
        ),
        rows(
            "Where the ranks' Python code is",
            "While the job completes nothing, if exporter stacks is on: the innermost calls of each stack, and the "
            "number of ranks with this stack. If one rank alone has a stack, the others may wait for this rank.",
            Query(f"topk({LISTED}, max by (stack) (stack:rankwatch_ranks:count{{{JOB}}}))"),
            columns=("stack",),
            value="ranks",
            size=HALF,
            nothing="the job goes on, or stacks are off",
        ),
        rows(
            "Ranks whose Python code is elsewhere",
            f"Ranks whose stack few or no other ranks have, while most ranks have another stack; at most {LISTED}.",
            Query(f"topk({LISTED}, max by (rank, node, stack) (rank:rankwatch_stack_elsewhere:info{{{JOB}}}))"),
            columns=("rank", "node", "stack"),
            size=HALF,
            links_to_rank=True,
            nothing="none, or stacks are off",
        ),
    ]


def _ras_troubles() -> Panel:
    columns = ("what", "rank", "comm", "comm_rank", "host", "gpu", "reason", "error")
    either = "\n    or\n".join(f'  label_replace({series}, "what", "{what}", "", "")' for what, series in TROUBLES)
    return rows(
        "By RAS: ranks that communicators miss or wait for, or that failed",
        f"At most {MOST_TROUBLES} of each kind. A rank that was stopped for a minute stays missing until the job ends. "
        "waited for: the rank has launched fewer operations than others, or does not reply. remote_error: another "
        "rank failed.",
        Query(f"topk by (what) ({MOST_TROUBLES}, max by ({', '.join(columns)}) (\n{either}\n))"),
        columns=columns,
        size=WHOLE,
    )


def _members() -> Panel:
    members = f"max by (node, nic, gpu, rank) (rankwatch_rank_info{{{JOB}}})"
    return rows(
        "Members by node and rail",
        f"At most {LISTED_RANKS} live ranks, with their GPU and the NIC near this GPU. NICs of one name are a rail.",
        Query(f"topk({LISTED_RANKS}, {members})"),
        columns=("node", "nic", "gpu", "rank"),
        size=WHOLE,
        links_to_rank=True,
    )
