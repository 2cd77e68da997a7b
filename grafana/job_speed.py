"""Rows of the Job dashboard on speed: bandwidth, late ranks, and the time of operations without waiting."""

from grafana.panels import HALF, NO_RECORDS, Panel, Query, Size, Steps, lines
from grafana.queries import JOB, WINDOW, bus_bandwidth, firing, lateness, most, named, over_time, ratio
from grafana.tables import rows

SHOWN_RANKS = 8
SHOWN_COMMUNICATORS = 5
"""Limit of communicators shown per collective."""
SHOWN_PAIRS = 12
LISTED = 32

MEAN_BANDWIDTH = f"rankwatch_inspector_mean_bus_bandwidth_bytes_per_second{{{JOB}}}"
MEANS = "operation, message_size, comm_name, comm, ranks"
COMM_SIZE = "comm, collective, size"
PAIRS = f"rankwatch_p2p_slow_pair_bandwidth_bytes_per_second{{{JOB}}}"
PAIR = "comm, sender, receiver, size"
CAUSE = ("rank", "node", "why")


def today() -> Panel:
    """Return the panel that compares the job's bandwidth with its bandwidth a day before."""
    return lines(
        "Bus bandwidth now and a day before",
        "Mean of all collectives over five minutes, weighted by time, including waits for late ranks. A job younger "
        "than a day has no curve of the day before.",
        Query(bus_bandwidth("job_id", JOB), "now"),
        Query(bus_bandwidth("job_id", JOB, "1d"), "a day before"),
        unit="Bps",
        nothing=NO_RECORDS,
        size=HALF,
    )


def bandwidth() -> Panel:
    """Return the panel on bandwidth."""
    mean = bus_bandwidth("comm, collective", JOB)
    slowest = f"bottomk by (collective) ({SHOWN_COMMUNICATORS}, {mean})"
    return lines(
        "Bus bandwidth by communicator and collective",
        "Mean over all members and five minutes, weighted by time, including waits for late ranks. For each "
        f"collective the {SHOWN_COMMUNICATORS} slowest communicators at each moment. For Inspector in Prometheus "
        "mode: the average over ranks of Inspector's means, by Inspector's size classes.",
        Query(named(slowest, f"rankwatch_collective_seconds_total{{{JOB}}}"), "{{collective}} {{comm_name}} {{comm}}"),
        Query(
            f"bottomk by (operation) ({SHOWN_COMMUNICATORS}, avg by ({MEANS}) ({MEAN_BANDWIDTH}))",
            "{{operation}} {{message_size}} {{comm_name}} {{comm}} {{ranks}}",
        ),
        unit="Bps",
        nothing=NO_RECORDS,
        size=Size(24, 9),
    )


def late(late_share: float) -> list[Panel]:
    """Return the panels on late ranks. ``late_share``: the share of wall time that makes a rank late."""
    most_late = f"max by (rank) ({over_time('max_over_time', f'rank:rankwatch_lateness:ratio{{{JOB}}}')})"
    alerts = firing("StragglerRank", JOB)
    return [
        lines(
            "Share of time that others waited for a rank",
            f"For each rank in the communicator with the greatest share; the {SHOWN_RANKS} ranks with the greatest "
            "shares in the time shown. Victims of a late rank can be late in other communicators: the table names "
            "the late rank.",
            Query(most(SHOWN_RANKS, f"max by (rank) ({lateness(JOB)})", "rank", over=most_late), "rank {{rank}}"),
            unit="percentunit",
            nothing=NO_RECORDS,
            size=Size(16),
            steps=Steps("green", {late_share: "red"}),
            links_to_rank=True,
        ),
        rows(
            "Reasons of lateness",
            "What the nodes report about late ranks but not about the job's other ranks: process (CPU, memory, "
            "storage, data loader), GPU (clocks, errors, other processes) or network. Without such a report: the "
            "program.",
            Query(f"topk({LISTED}, max by ({', '.join(CAUSE)}) ({alerts}))"),
            columns=CAUSE,
            links_to_rank=True,
        ),
    ]


def pairs() -> Panel:
    """Return the panel on pairs of ranks."""
    better_end = f"max by ({PAIR}) ({PAIRS})"
    slowest = most(
        SHOWN_PAIRS, better_end, PAIR, over=f"max by ({PAIR}) ({over_time('avg_over_time', PAIRS)})", least=True
    )
    return lines(
        "Bandwidth of the slowest pairs of ranks",
        "For messages above 512 KiB: bandwidth of the fastest tenth of messages, by the rank that does not wait. "
        f"Sender and receiver are ranks in the communicator. The {SHOWN_PAIRS} slowest pairs in the time shown.",
        Query(named(slowest, PAIRS), "{{sender}} to {{receiver}} ≤ {{size}} B {{comm_name}} {{comm}}"),
        unit="Bps",
        nothing=NO_RECORDS,
        size=Size(12, 10),
    )


def fabric() -> Panel:
    """Return the panel on the time of operations without waiting."""
    rate = "sum by (comm, collective, size) (rate({}{{{}}}{}))"
    floor, matched = (
        rate.format(f"rankwatch_communicator_{name}_total", JOB, WINDOW)
        for name in ("floor_seconds", "matched_operations")
    )
    over_nodes = f"min by ({COMM_SIZE}) (rankwatch_communicator_transfer_seconds{{{JOB}}})"
    slowest = f"topk by (collective, size) ({SHOWN_COMMUNICATORS}, {over_nodes} or {ratio(floor, matched)})"
    return lines(
        "Time of an operation without waiting",
        "Time of operations that waited for no rank, on the fastest node. A bad link lengthens this time for all "
        f"ranks. For each collective and size class the {SHOWN_COMMUNICATORS} slowest communicators.",
        Query(
            named(slowest, f"{over_nodes} or rankwatch_communicator_matched_operations_total{{{JOB}}}"),
            "{{collective}} ≤ {{size}} B {{comm_name}} {{comm}}",
        ),
        unit="s",
        nothing=NO_RECORDS,
        size=Size(12, 10),
    )
