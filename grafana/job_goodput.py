"""The Job dashboard's row on goodput: where the time of the job's GPUs goes."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size, lines, rows, stats
from grafana.queries import JOB

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
"""Of each class of time."""


def panels() -> list[Panel]:
    """Return the row."""
    return [
        lines(
            "What the GPUs' time goes into",
            "Shares of the GPUs' time, minute by minute: starting, down or restarting, doing again what a crash undid, "
            "writing checkpoints, standing still, waiting for a late rank, work that lasts, unknown.",
            Query(f"job:rankwatch_time:ratio{{{JOB}}}", "{{class}}"),
            unit="percentunit",
            size=Size(16),
            most=1,
            stacked=True,
            colors=COLORS,
        ),
        rows(
            "GPU hours",
            "What the GPUs' time went into since the job began, as far as it was watched.",
            Query(f"sum by (class) (job:rankwatch_gpu_seconds:total{{{JOB}}}) / 3600"),
            columns=("class",),
            value="hours",
            unit="h",
            size=Size(4),
            sort_by="hours",
            descending=True,
        ),
        stats(
            "Goodput",
            "Share of the GPUs' time that went into work that lasts, of what is known; how often the job was "
            "interrupted, and how long it took on average until it worked again.",
            Query(f"job:rankwatch_goodput:ratio{{{JOB}}}", "goodput"),
            Query(f"job:rankwatch_interruptions:total{{{JOB}}}", "interruptions"),
            Query(
                f"job:rankwatch_mttr:seconds{{{JOB}}} or 0 * (job:rankwatch_interruptions:total{{{JOB}}} == 0)",
                "until it worked again",
            ),
            unit="percentunit",
            size=Size(4),
            overrides={"interruptions": {"unit": "none"}, "until it worked again": {"unit": "s"}},
        ),
    ]
