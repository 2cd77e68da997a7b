"""Table of the Node dashboard: jobs in which a rank on this node died first."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size
from grafana.queries import NODE, latest
from grafana.tables import rows

MEMORY = "[7d]"


def _first_deaths(selector: str) -> str:
    """Return the ranks that died first in their jobs, and those that ran when their node rebooted."""
    rebooted = f'rank:rankwatch_exit:time{{{selector}, class="reboot"}}'
    return (
        f"(present_over_time(rank:rankwatch_dead:time{{{selector}}}{MEMORY}) or present_over_time({rebooted}{MEMORY}))"
    )


def jobs_that_died_first(selector: str) -> str:
    """Return a query for the number of jobs in MEMORY whose first death was on each node."""
    return f"count by (node, cluster) (group by (node, cluster, job_id) {_first_deaths(selector)})"


def died_first() -> Panel:
    """Return the table of jobs whose first death was on the node."""
    deaths = ("job_id", "user", "class", "cause")
    return rows(
        "Jobs that died here first",
        "In the time shown, with the class of the exit, and its cause where checks or the job's log show one.",
        Query(f"group by ({', '.join(deaths)}) ({latest(f'rank:rankwatch_dead:time{{{NODE}}}')})"),
        columns=deaths,
        size=Size(8),
        sort_by="job_id",
    )
