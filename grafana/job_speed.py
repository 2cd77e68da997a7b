"""The Job dashboard's rows on speed: bandwidth, late ranks, the fabric's own time."""

from __future__ import annotations

from grafana.panels import NO_RECORDS, Panel, Query, Size, Steps, lines, rows
from grafana.queries import JOB, most, named, over_time

SHOWN_RANKS = 8
SHOWN_COMMUNICATORS = 5
"""Per collective."""
SHOWN_PAIRS = 12
LISTED = 32

BANDWIDTH = f"comm_collective:rankwatch_bus_bandwidth:bytes_per_second{{{JOB}}}"
MEAN_BANDWIDTH = f"rankwatch_inspector_mean_bus_bandwidth_bytes_per_second{{{JOB}}}"
MEANS = "operation, message_size, comm_name, comm, ranks"
LATENESS = f"rank:rankwatch_lateness:ratio{{{JOB}}}"
SPREAD = f"comm_size:rankwatch_spread:seconds{{{JOB}}}"
FLOOR = f"comm_size:rankwatch_floor:seconds{{{JOB}}}"
COMM_SIZE = "comm, collective, size"
PAIRS = f"rankwatch_p2p_slow_pair_bandwidth_bytes_per_second{{{JOB}}}"
PAIR = "comm, sender, receiver, size"
CAUSE = ("rank", "node", "cause", "detail")


def bandwidth() -> list[Panel]:
    """Return the panel on bandwidth."""
    slowest = most(
        SHOWN_COMMUNICATORS,
        BANDWIDTH,
        "comm, collective",
        over=over_time("avg_over_time", BANDWIDTH),
        each="collective",
        least=True,
    )
    return [
        lines(
            "Bus bandwidth by communicator and collective",
            "Mean over all members and five minutes, weighted by time, waiting for late ranks included. Of "
            f"each collective the {SHOWN_COMMUNICATORS} slowest communicators in the time shown. Where Inspector is in "
            "Prometheus mode: the average over ranks of its own means, by its own sizes.",
            Query(named(slowest, BANDWIDTH), "{{collective}} {{comm_name}} {{comm}}"),
            Query(
                f"bottomk by (operation) ({SHOWN_COMMUNICATORS}, avg by ({MEANS}) ({MEAN_BANDWIDTH}))",
                "{{operation}} {{message_size}} {{comm_name}} {{comm}} {{ranks}}",
            ),
            unit="Bps",
            nothing=NO_RECORDS,
            size=Size(24, 9),
        ),
    ]


def late(late_share: float) -> list[Panel]:
    """Return the panels on late ranks; from ``late_share`` of wall time on a rank counts as late."""
    by_rank = f"max by (rank) ({LATENESS})"
    latest = f"max by (rank) ({over_time('max_over_time', LATENESS)})"
    return [
        lines(
            "Share of time that others waited for a rank",
            f"Per rank, in the communicator where it is greatest; the {SHOWN_RANKS} greatest in the time "
            "shown. Victims of a late rank may be late elsewhere: see who is named.",
            Query(most(SHOWN_RANKS, by_rank, "rank", over=latest), "rank {{rank}}"),
            unit="percentunit",
            nothing=NO_RECORDS,
            size=Size(16),
            steps=Steps("green", {late_share: "red"}),
            links_to_rank=True,
        ),
        rows(
            "Late ranks now",
            f"Ranks for which a communicator waits more than {late_share:.0%} of the time, far more than for any "
            "other, minute after minute, and which do not wait for another themselves.",
            Query(f"topk({LISTED}, max by (rank, comm) (comm_rank:rankwatch_straggles:ratio{{{JOB}}}))"),
            columns=("rank", "comm"),
            value="waited for",
            unit="percentunit",
            size=Size(8),
            sort_by="waited for",
            descending=True,
            links_to_rank=True,
        ),
        rows(
            "Why they are late",
            "What the late ranks' nodes show of them and not of the job's other ranks, and since when: the process "
            "(CPU, memory, storage, data loaders), GPU (clocks, errors, others' processes) or NIC; else the program.",
            Query(f"1000 * topk({LISTED}, max by ({', '.join(CAUSE)}) (rank:rankwatch_late_cause:seconds{{{JOB}}}))"),
            columns=CAUSE,
            value="since",
            unit="dateTimeAsIso",
            size=Size(24, 6),
            sort_by="since",
            links_to_rank=True,
        ),
    ]


def pairs() -> list[Panel]:
    """Return the panel on pairs of ranks."""
    better_end = f"max by ({PAIR}) ({PAIRS})"
    slowest = most(
        SHOWN_PAIRS, better_end, PAIR, over=f"max by ({PAIR}) ({over_time('avg_over_time', PAIRS)})", least=True
    )
    return [
        lines(
            "Bandwidth of the slowest pairs of ranks",
            "Of messages above 512 KiB: what the fastest tenth reached, at the better end, which waits for nobody. "
            f"Sender and receiver are ranks in the communicator. The {SHOWN_PAIRS} slowest in the time shown.",
            Query(named(slowest, PAIRS), "{{sender}} to {{receiver}} ≤ {{size}} B {{comm_name}} {{comm}}"),
            unit="Bps",
            nothing=NO_RECORDS,
            size=Size(24),
        )
    ]


def fabric() -> list[Panel]:
    """Return the panels on the fabric's own time."""
    slowest = most(
        SHOWN_COMMUNICATORS, FLOOR, COMM_SIZE, over=over_time("avg_over_time", FLOOR), each="collective, size"
    )
    legend = "{{collective}} ≤ {{size}} B {{comm_name}} {{comm}}"
    same = most(SHOWN_COMMUNICATORS, SPREAD, COMM_SIZE, over=over_time("avg_over_time", FLOOR), each="collective, size")
    return [
        lines(
            "Floor: time of an operation without waiting",
            "Of operations that waited for nobody, over ten minutes; over nodes by the node with the shortest at "
            f"any time. A bad link lifts it for everyone. Of each collective and size class the {SHOWN_COMMUNICATORS} "
            "slowest communicators in the time shown.",
            Query(named(slowest, FLOOR), legend),
            unit="s",
            nothing=NO_RECORDS,
            size=Size(12, 10),
        ),
        lines(
            "Spread: time from the first rank's arrival to the last",
            "Over five minutes, operation by operation in communicators on one node, else between the ranks' means. A "
            "late rank widens it; a bad link does not. Of the communicators whose floors are shown beside it.",
            Query(named(same, FLOOR), legend),
            unit="s",
            nothing=NO_RECORDS,
            size=Size(12, 10),
        ),
    ]
