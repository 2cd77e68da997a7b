"""The Node dashboard's row on what the node did to jobs before: deaths that began here, late ranks."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size, Steps, rows, stats
from grafana.queries import NODE, latest

LISTED = 32
LEMON_POINTS = 5


def panels() -> list[Panel]:
    """Return the row."""
    deaths = ("job_id", "user", "kind")
    return [
        stats(
            "Blamed for",
            "Of the last 30 days, jobs whose first death was here and jobs that waited for a rank here; of the last "
            f"seven, points: two for each job that its hardware ended first, one for other deaths. From {LEMON_POINTS} "
            "on it is a lemon.",
            Query(f"max(node:rankwatch_first_deaths:count30d{{{NODE}}})", "first deaths"),
            Query(f"max(node:rankwatch_stragglers:count30d{{{NODE}}})", "jobs with late ranks"),
            Query(f"max(node:rankwatch_lemon_points:sum7d{{{NODE}}})", "points"),
            unit="none",
            size=Size(8),
            overrides={"points": {"thresholds": Steps("green", {1: "yellow", LEMON_POINTS: "red"}).build().build()}},
            nothing="nothing",
        ),
        rows(
            "Jobs that died here first",
            "In the time shown, by what may be to blame: hardware (a crash by a signal that hardware causes, too, "
            "failed hardware, the node was lost) or other.",
            Query(f"group by ({', '.join(deaths)}) ({latest(f'node:rankwatch_first_death:info{{{NODE}}}')})"),
            columns=deaths,
            size=Size(8),
            sort_by="job_id",
        ),
        rows(
            "Jobs that waited for a rank here",
            f"In the time shown, {LISTED} at most.",
            Query(f"topk({LISTED}, group by (job_id) ({latest(f'node:rankwatch_straggler:info{{{NODE}}}')}))"),
            columns=("job_id",),
            size=Size(8),
            sort_by="job_id",
        ),
    ]
