"""The Job dashboard's row on what RAS tells: who answers, who has launched less, whom a hang waits for."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size, lines, rows
from grafana.queries import JOB, named

SHOWN_COMMUNICATORS = 5
LISTED = 32

HALF = Size(12)
PLACE = ("rank", "comm", "comm_rank")
LAUNCHED = "comm, collective"
LAST_LAUNCH = f"rankwatch_communicator_last_launch_timestamp_seconds{{{JOB}}}"
STALLED = f"rankwatch_communicator_stalled{{{JOB}}} == 1"


def panels() -> list[Panel]:
    """Return the row's panels."""
    return [*_answers(), *_launches(), *_hangs()]


def _answers() -> list[Panel]:
    missing = f"max by (rank, comm, comm_rank, host, gpu, reason) (rankwatch_communicator_rank_missing{{{JOB}}})"
    return [
        lines(
            "Ranks that answer",
            "Ranks of the job's communicators by the last report, of each state the most in any of them. Missing: "
            "unresponsive ones give no answer, dead ones gave none for a minute; others have left the communicator.",
            Query(
                f'max by (state) (rankwatch_communicator_ranks{{{JOB}, state!~"initializing|finalizing|aborted"}})',
                "{{state}}",
            ),
            unit="short",
            size=HALF,
        ),
        rows(
            "Missing now",
            f"Ranks without an answer, by communicator, {LISTED} at most. A rank that was stopped for a minute stays "
            "dead to the others for ever.",
            Query(f"topk({LISTED}, {missing})"),
            columns=(*PLACE, "host", "gpu", "reason"),
            size=HALF,
            sort_by="rank",
        ),
    ]


def _launches() -> list[Panel]:
    launched = f"rankwatch_communicator_launched_max{{{JOB}}}"
    apart = f"max by ({LAUNCHED}) ({launched}) - max by ({LAUNCHED}) (rankwatch_communicator_launched_min{{{JOB}}})"
    return [
        lines(
            "Launches between the rank furthest ahead and the one furthest behind",
            "A few that change all the time are normal; a difference that stays is a hang. Of each collective the "
            f"{SHOWN_COMMUNICATORS} communicators that are furthest apart.",
            Query(
                named(f"topk by (collective) ({SHOWN_COMMUNICATORS}, {apart})", launched),
                "{{collective}} {{comm_name}} {{comm}}",
            ),
            unit="short",
            size=HALF,
        ),
        lines(
            "Since the last launch",
            "Time since a report first showed the launches as they are now: in any communicator, and in those that are "
            "stalled. Not counted: CUDA graphs, sends and receives.",
            Query(f"time() - max({LAST_LAUNCH})", "any communicator"),
            Query(f"time() - max by (comm) ({LAST_LAUNCH} and on (comm, node) {STALLED})", "stalled {{comm}}"),
            unit="s",
            size=HALF,
        ),
    ]


def _hangs() -> list[Panel]:
    suspects = f"max by (rank, comm, comm_rank, host, gpu, reason) (rankwatch_communicator_suspect{{{JOB}}})"
    aborted = f'label_replace(rankwatch_communicator_aborted{{{JOB}}}, "error", "aborted", "", "")'
    errors = (
        "max by (rank, comm, comm_rank, error) (\n"
        f"  rankwatch_communicator_async_error{{{JOB}}}\n    or\n"
        f"  rankwatch_communicator_init_error{{{JOB}}}\n    or\n  {aborted}\n)"
    )
    return [
        rows(
            "Stalled, and waiting for",
            "Ranks that stalled communicators wait for: they have launched less than others, or do not answer. Nobody "
            "where that cannot be told.",
            Query(f"topk({LISTED}, {suspects})"),
            columns=(*PLACE, "host", "gpu", "reason"),
            size=HALF,
            sort_by="comm",
        ),
        rows(
            "Errors and aborts",
            "Ranks whose communicators have failed, could not be made, or are being aborted. A remote_error is a "
            "victim's.",
            Query(f"topk({LISTED}, {errors})"),
            columns=(*PLACE, "error"),
            size=HALF,
            sort_by="error",
        ),
    ]
