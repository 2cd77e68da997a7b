"""Rows of the Job dashboard: its members and their nodes, and the phases of a NIXL-EP run."""

from __future__ import annotations

from grafana.panels import BAD_FROM_ONE, NONE_KNOWN, Panel, Query, Size, Steps, lines, stats
from grafana.queries import JOB
from grafana.tables import rows

LISTED_RANKS = 256
LISTED = 32

HALF = Size(12)


def panels() -> list[Panel]:
    """Return the row on members."""
    members = f"max by (node, nic, gpu, rank) (rankwatch_rank_info{{{JOB}}})"
    return [
        rows(
            "Members by node and rail",
            f"Live ranks, {LISTED_RANKS} at most, with their GPU and the NIC near it: NICs of one name are a rail.",
            Query(f"topk({LISTED_RANKS}, {members})"),
            columns=("node", "nic", "gpu", "rank"),
            size=Size(24),
            sort_by="node",
            links_to_rank=True,
        ),
    ]


def phases() -> list[Panel]:
    """Return the row on a NIXL-EP run."""
    ended = f'max by (node, rank) (rankwatch_nixl_ep_phase{{{JOB}, event="ended"}})'
    expected = f"max(rankwatch_nixl_ep_expected_ranks{{{JOB}}})"
    begun = f'max by (rank) (rankwatch_nixl_ep_phase{{{JOB}, event="begun"}})'
    ranks = f"{begun} unless on (rank) rankwatch_planned_exit{{{JOB}}}"
    measured = f"rankwatch_nixl_ep_bandwidth_bytes_per_second{{{JOB}}}"
    unmeasured = f'max by (rank) (rankwatch_nixl_ep_phase{{{JOB}, event="ended"}}) unless on (rank) {measured}'
    return [
        stats(
            "NIXL-EP run",
            "The phase that the launcher last saw completed; ranks in the plan, those that no log mentions, and those "
            "that ended a phase without a measurement.",
            Query(f'max(rankwatch_nixl_ep_phase{{{JOB}, event="completed"}})', "phase completed"),
            Query(expected, "expected"),
            Query(f"{expected} - count({ranks}) > 0", "in no log"),
            Query(f"count({unmeasured})", "without a measurement"),
            unit="none",
            size=Size(16, 4),
            overrides={"in no log": BAD_FROM_ONE, "without a measurement": BAD_FROM_ONE},
        ),
        stats(
            "Why it failed",
            "From the logs of the NIXL-EP run's launcher and ranks.",
            Query(f"max by (category) (rankwatch_nixl_ep_failure_info{{{JOB}}})", "{{category}}"),
            unit="none",
            size=Size(8, 4),
            steps=Steps("red", {}),
            names_only=True,
            nothing=NONE_KNOWN,
        ),
        rows(
            "Phases by node and rank",
            f"The phase that each rank ended last, the {LISTED_RANKS} that are least far.",
            Query(f"bottomk({LISTED_RANKS}, {ended})"),
            columns=("node", "rank"),
            value="ended phase",
            size=HALF,
            sort_by="ended phase",
            links_to_rank=True,
        ),
        lines(
            "Dispatch and combine bandwidth of a rank",
            "The ranks' last measurements: mean and slowest, by stage (combined: both stages together).",
            Query(f"avg by (stage) ({measured})", "mean, {{stage}}"),
            Query(f"min by (stage) ({measured})", "slowest, {{stage}}"),
            unit="Bps",
            nothing="no NIXL-EP run",
            size=HALF,
        ),
    ]
