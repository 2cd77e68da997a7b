"""The Job dashboard's row on goodput: where the time of the job's GPUs goes."""

from grafana.panels import Panel, Query, Size, lines, stats
from grafana.queries import JOB, WINDOW, over_time

COLORS = {
    "productive": "green",
    "checkpointing": "blue",
    "recomputing": "purple",
    "waiting": "yellow",
    "stalled": "orange",
    "down": "red",
    "not_started": "light-blue",
    "unknown": "gray",
}
"""Colour of each class of time."""

GPUS = "job:rankwatch_gpus:count"
BUSY = "job:rankwatch_gpus_busy:count"
MEMORY = "[6h]"
"""Range over which goodput is computed, the same as in the alert."""


def class_shares(selector: str) -> Query:
    """Return a query for the share of the GPUs' time by class; waiting for the last rank is a class of its own."""
    all_of = f"sum(sum_over_time({GPUS}{{{selector}}}{WINDOW}))"
    busy = f"sum_over_time({BUSY}{{{selector}}}{WINDOW})"
    waiting = f'label_replace(clamp_min(1 - sum({busy}) / {all_of}, 0), "class", "waiting", "", "")'
    return Query(f"sum by (class) ({busy})\n  / on () group_left () {all_of}\n  or {waiting}", "{{class}}")


def class_hours(selector: str) -> str:
    """Return a query for GPU hours by class in the shown time: each count is one GPU minute."""
    all_of = over_time("sum_over_time", f"{GPUS}{{{selector}}}")
    busy = over_time("sum_over_time", f"{BUSY}{{{selector}}}")
    waiting = f'label_replace(sum({all_of}) - sum({busy}), "class", "waiting", "", "")'
    return f"(sum by (class) ({busy})\n  or {waiting}) / 60 > 0.001"


def goodput(selector: str) -> str:
    """Return a query for jobs' goodput over MEMORY: the productive share of their GPUs' time, without class unknown."""
    by = "job_id, cluster"
    known = f"sum by ({by}) (sum_over_time({GPUS}{{{selector}}}{MEMORY}))"

    def of_class(name: str) -> str:
        busy = f'sum by ({by}) (sum_over_time({BUSY}{{{selector}, class="{name}"}}{MEMORY}))'
        return f"({busy} or 0 * {known})"

    return f"{of_class('productive')}\n  / ({known} - {of_class('unknown')} > 0)"


def panels() -> list[Panel]:
    """Return the row."""
    return [
        lines(
            "GPU time by class",
            "Shares of the GPUs' time. not_started: the job starts. down: it is down or restarts. recomputing: it "
            "repeats work that a crash lost. stalled: it stands still. waiting: it waits for a late rank. "
            "productive: work that lasts.",
            class_shares(JOB),
            unit="percentunit",
            size=Size(18),
            most=1,
            stacked=True,
            colors=COLORS,
        ),
        stats(
            "Goodput",
            "Productive share of the GPUs' time in the last six hours, without time of class unknown; and number of "
            "restarts of a node's ranks in the time shown.",
            Query(goodput(JOB), "goodput"),
            Query(f"max(resets(rankwatch_job_start_age_seconds{{{JOB}}}[$__range]))", "starts anew"),
            unit="percentunit",
            size=Size(6),
            overrides={"starts anew": {"unit": "none"}},
        ),
    ]
