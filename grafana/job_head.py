"""The first screen of the Job dashboard: sentences, numbers, the states of all ranks now, all ranks over time (jobs of
8 to 8,000 ranks), and the owner."""

from grafana.cells import grid, heat
from grafana.panels import HALF, NO_RECORDS, Panel, Query, Size, Steps, fixed, stats
from grafana.queries import (
    JOB,
    STATES,
    bus_bandwidth,
    coverage,
    firing,
    lateness,
    rank_state_code,
    rank_states_count,
    silence,
)
from grafana.tables import rows

SMALL = 128
"""Jobs of at most this many ranks have a row for each rank; larger jobs have a row for each hundred ranks."""
_EXPECTED = f"last_over_time(job:rankwatch_ranks_expected:max{{{JOB}}}[$__range] @ end())"
UNLESS_LARGE = f" unless on (cluster, job_id) {_EXPECTED} > {SMALL}"
GRID_RANKS = 256
"""Limit of cells: in more cells the ranks' numbers are not readable."""
SILENT_SECONDS = 60
"""A rank that completes no operation for this long counts as waiting."""

ENDED = (
    f"rank:rankwatch_dead:time{{{JOB}}}\n    or on (cluster, job_id)\n"
    f'  (rank:rankwatch_exit:time{{{JOB}, class!="ok"}}\n'
    f"    > on (cluster, job_id) group_left () job:rankwatch_run:time{{{JOB}}})"
)
"""Ranks that died first, with the time. If no rank died: the first exits on each node since the run began."""
LATE = firing("StragglerRank", JOB)
BEHIND = f"rank:rankwatch_flight_recorder_behind:sequence{{{JOB}}}"
SUSPECT = f"rank:rankwatch_suspect:bool{{{JOB}}}"
LOST = (
    f"max by (cluster, job_id, node) (\n  last_over_time(job_node:rankwatch_silent:time{{{JOB}}}[1d])\n"
    f'    or rank:rankwatch_exit:time{{{JOB}, class="reboot"}}\n'
    f") and on (cluster, job_id, node) {firing('NodeLost', JOB)}"
)
AGE = (
    f"time() - max(job:rankwatch_run:time{{{JOB}}} and on (cluster, job_id) job:rankwatch_ranks_live:sum{{{JOB}}} > 0)"
)
WAITING = f"count({silence(JOB)} > {SILENT_SECONDS})"
UNRESPONSIVE = f'rankwatch_rank_state{{{JOB}, state="unresponsive"}}'
UNHEALTHY = f"rankwatch_rank_unhealthy{{{JOB}}}"
NOW = {"mappings": [{"type": "value", "options": {"1": {"text": "now", "index": 0}}}], "color": fixed("orange")}
SINCE = {"unit": "dateTimeFromNow", "color": fixed("red")}
ORANGE = {"color": fixed("orange")}
FACTS = ("user", "name", "partition", "nodes", "world_size", "restarts", "scheduler_cluster")


def sentences() -> Panel:
    """Return the top panel: known facts about the job, one sentence each."""
    lost = firing("NodeLost", JOB)
    trouble = " or ".join((f"({ENDED})", lost, LATE, BEHIND, SUSPECT, UNRESPONSIVE, UNHEALTHY))
    return stats(
        "What is known",
        "One sentence each: the first rank's end, lost nodes, ranks without a completed operation for a minute, "
        "the rank that the others wait for and why, the scheduler's report, ranks that are unresponsive or on "
        "failed hardware.",
        Query(_how_it_ended(), "rank {{rank}} on {{node}} {{how}}"),
        Query(f"1000 * topk(2, {LOST})", "{{node}} is lost with its ranks"),
        Query(WAITING, "nothing completed for a minute"),
        Query(
            _in_words("what", f"topk(2, max by (rank, what, operation) ({BEHIND}))"),
            "rank {{rank}} has {{what}} {{operation}}",
        ),
        Query(f"topk(2, max by (rank) ({SUSPECT}))", "a stalled communicator waits for rank {{rank}}"),
        Query(
            _in_words("why", f"topk(2, max by (rank, node, why) ({LATE}))"), "late: rank {{rank}} on {{node}}, {{why}}"
        ),
        Query(f"max by (state) (rankwatch_job_end_timestamp_seconds{{{JOB}}})", "by the scheduler: {{state}}"),
        Query(
            f"job:rankwatch_ranks_live:sum{{{JOB}}} > 0 unless on (cluster, job_id) ({trouble})",
            "no rank is dead, late or waited for",
        ),
        Query(f"topk(2, max by (rank, node) ({UNRESPONSIVE}))", "rank {{rank}} on {{node}} does not respond"),
        Query(
            _in_words("reason", f"topk(2, max by (rank, node, reason) ({UNHEALTHY}))"),
            "rank {{rank}} on {{node}} runs on failed hardware: {{reason}}",
        ),
        size=Size(24, 5),
        steps=Steps("green", {}),
        sentences=True,
        by_query={
            "A": SINCE,
            "B": SINCE,
            "C": ORANGE | {"unit": "suffix: ranks"},
            "D": ORANGE | {"unit": "prefix:collective no. "},
            "E": NOW,
            "F": NOW | {"color": fixed("yellow")},
            "G": {
                "mappings": [{"type": "value", "options": {"1": {"text": "ended", "index": 0}}}],
                "color": fixed("blue"),
            },
            "H": {"unit": "suffix: live ranks"},
            "I": NOW,
            "J": NOW,
        },
        nothing="no live rank, and no exit in 15 minutes",
    )


def summary() -> list[Panel]:
    """Return the panels of single numbers: ranks, age and silence, bus bandwidth."""
    colors = {state: {"color": fixed(value.color)} for state, value in STATES.items()}
    return [
        stats(
            "Ranks",
            "Ranks that the job should have (world size, or the communicators' size), and its ranks by state.",
            Query(rank_states_count("state", JOB), "{{state}}"),
            Query(f"job:rankwatch_ranks_expected:max{{{JOB}}}", "expected"),
            size=Size(12, 4),
            overrides=colors,
        ),
        stats(
            "Age and silence",
            "While the job runs: time since the first process of this run started. Time since a rank last completed an "
            "operation (from records).",
            Query(AGE, "age"),
            Query(f"job:rankwatch_silence:seconds{{{JOB}}}", "silence"),
            unit="s",
            overrides={"silence": {"thresholds": Steps("green", {60: "yellow", 300: "red"}).build().build()}},
        ),
        stats(
            "Bus bandwidth",
            "Mean bus bandwidth of all collectives over five minutes, weighted by time; and the share of operations "
            "with a record: only these count in the bandwidth.",
            Query(bus_bandwidth("job_id", JOB), "bandwidth"),
            Query(coverage(JOB), "coverage"),
            unit="Bps",
            overrides={"coverage": {"unit": "percentunit"}},
        ),
    ]


def ranks_now() -> Panel:
    """Return the grid of all ranks, coloured by state."""
    return grid(
        "Ranks now",
        "Each rank's state: green alive, blue finished, yellow exited, purple unknown, orange unresponsive, red dead. "
        f"In larger jobs only the {GRID_RANKS} worst ranks. A click leads to the rank.",
        Query(f"topk({GRID_RANKS}, {rank_state_code()})"),
        size=HALF,
        states=STATES,
        limit=GRID_RANKS,
    )


def _how_it_ended() -> str:
    """Return a query for the first rank's end (epoch ms), with the end in words as label ``how``."""
    words = f'label_replace(\n  {ENDED},\n  "how", "ended", "", ""\n)'
    for text, label, pattern in (
        ("exited with status $1", "code", "(.+)"),
        ("killed ($1)", "signal", "(.+)"),
        ("crashed ($1)", "signal", "(SIG(?:SEGV|BUS|ILL|FPE|TRAP|SYS|ABRT))"),
        ("killed by the OOM killer", "reason", "oom_killed"),
        ("ran when its node rebooted", "class", "reboot"),
    ):
        words = f'label_replace({words}, "how", "{text}", "{label}", "{pattern}")'
    return f"1000 * bottomk(1, max by (rank, node, how) ({words}))"


def _in_words(label: str, query: str) -> str:
    """Return the query with blanks instead of underscores in a label's values (``not_begun``)."""
    return f'label_replace(\n  {query},\n  "{label}", "$1 $2", "{label}", "([^_]*)_(.*)"\n)'


def owner() -> Panel:
    """Return the table of the job's owner."""
    facts = ", ".join(FACTS)
    return rows(
        "Owner",
        "The job's user, name and settings from the ranks' environment; also shown after the job's end.",
        Query(f"group by ({facts}) (last_over_time(rankwatch_job_info{{{JOB}}}[$__range]))"),
        columns=FACTS,
        size=Size(24, 4),
        sort_by="restarts",
        descending=True,
    )


def over_time(late_share: float) -> list[Panel]:
    """Return the panels of all ranks over time. ``late_share``: the share of wall time that makes a rank late."""
    return [
        heat(
            "Silence of all ranks over time",
            "Time since each live rank last completed an operation. Jobs of more than "
            f"{SMALL} ranks have a row for each hundred ranks, with the longest silence of these ranks.",
            *_by_place(silence(JOB, UNLESS_LARGE), "hundred:rankwatch_silence:seconds"),
            unit="s",
            size=HALF,
            steps=Steps("green", {20: "light-yellow", SILENT_SECONDS: "yellow", 180: "orange", 600: "red"}),
            nothing=NO_RECORDS,
        ),
        heat(
            "Lateness of all ranks over time",
            "Share of time that a communicator waited for each rank (the communicator with the greatest share). "
            "Jobs of more than "
            f"{SMALL} ranks have a row for each hundred ranks, with the greatest share of these ranks.",
            *_by_place(lateness(JOB) + UNLESS_LARGE, "hundred:rankwatch_lateness:ratio"),
            unit="percentunit",
            size=HALF,
            steps=Steps("green", {late_share / 4: "light-yellow", late_share / 2: "yellow", late_share: "red"}),
            nothing=NO_RECORDS,
        ),
    ]


def _by_place(ranks: str, of_hundreds: str) -> tuple[Query, Query]:
    """Return two queries, by rank and by hundred ranks. A label ``place`` keeps the ranks' numeric order."""
    for zeros, digits in (("00", r"(\\d)"), ("0", r"(\\d\\d)"), ("", r"(\\d\\d\\d)")):
        ranks = f'label_replace({ranks}, "place", "{zeros}$1", "rank", "{digits}")'
    return (
        Query(f"max by (place, rank) ({ranks})", "{{rank}}"),
        Query(f"max by (place) ({of_hundreds}{{{JOB}}})", "{{place}}00 to {{place}}99"),
    )
