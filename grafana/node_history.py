"""The Node dashboard's row on what the node did to jobs before: deaths that began here, late ranks."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size, rows, stats
from grafana.queries import NODE, firing, latest

LISTED = 32
MEMORY = "[7d]"


def _first_deaths(selector: str) -> str:
    """Return the ranks that were the first to die of their jobs, and those that ran when their node rebooted."""
    rebooted = f'rank:rankwatch_exit:time{{{selector}, class="reboot"}}'
    return (
        f"(present_over_time(rank:rankwatch_dead:time{{{selector}}}{MEMORY}) or present_over_time({rebooted}{MEMORY}))"
    )


def jobs_that_died_first(selector: str) -> str:
    """Return a query for how many jobs died first on each node, of MEMORY."""
    return f"count by (node, cluster) (group by (node, cluster, job_id) {_first_deaths(selector)})"


def panels() -> list[Panel]:
    """Return the row."""
    deaths = ("job_id", "user", "class", "cause")
    late = firing("StragglerRank", NODE)
    return [
        stats(
            "Blamed for",
            "Of the last seven days: jobs of which a rank here was the first to die, or that ran here when the node "
            "rebooted, and jobs that waited for a rank here.",
            Query(f"count(group by (cluster, job_id) {_first_deaths(NODE)})", "first deaths"),
            Query(f"count(group by (cluster, job_id) (present_over_time({late}{MEMORY})))", "jobs with late ranks"),
            unit="none",
            size=Size(8),
            nothing="nothing",
        ),
        rows(
            "Jobs that died here first",
            "In the time shown, with the class of the exit and its cause where checks or the job's log tell.",
            Query(f"group by ({', '.join(deaths)}) ({latest(f'rank:rankwatch_dead:time{{{NODE}}}')})"),
            columns=deaths,
            size=Size(8),
            sort_by="job_id",
        ),
        rows(
            "Jobs that waited for a rank here",
            f"In the time shown, with what held the rank up, {LISTED} at most.",
            Query(f"topk({LISTED}, group by (job_id, rank, why) ({latest(late)}))"),
            columns=("job_id", "rank", "why"),
            size=Size(8),
            sort_by="job_id",
        ),
    ]
