"""Rows of the Rank dashboard on speed: collectives, ranks that wait for this rank, sends and receives."""

from grafana.panels import NO_RECORDS, WHOLE, Panel, Query, Size, Steps, lines
from grafana.queries import RANK, named, rate_of, ratio

TALL = Size(12, 10)
"""Size for the six curves that a rank usually has."""
COLLECTIVE = "comm, collective"
DIRECTION = "comm, direction"
OPERATIONS = f"rankwatch_collective_operations_total{{{RANK}}}"
P2P_OPERATIONS = f"rankwatch_p2p_operations_total{{{RANK}}}"
LATENESS = f"clamp_min(max(rank:rankwatch_lateness:ratio{{{RANK}}}), 0)"
LATE = f"comm_rank:rankwatch_late:ratio{{{RANK}}}"
MEANS = "operation, message_size, comm_name, comm, ranks, algo_proto"


def bus_bandwidth(by: str) -> str:
    """Return a query for the rank's bus bandwidth by labels ``by``, or over all its collectives."""
    seconds = rate_of("rankwatch_collective_seconds_total", RANK, by)
    return ratio(rate_of("rankwatch_collective_bus_bytes_total", RANK, by), seconds)


def collectives() -> list[Panel]:
    """Return the panels on collectives."""
    return [
        lines(
            "Bus bandwidth by communicator and collective",
            "Mean weighted by time, including waits for late ranks: a late rank itself has the highest bandwidth.",
            Query(named(bus_bandwidth(COLLECTIVE), OPERATIONS), "{{collective}} {{comm_name}} {{comm}}"),
            unit="Bps",
            nothing=NO_RECORDS,
            size=TALL,
        ),
        lines(
            "Bus bandwidth by collective and message size",
            "Mean weighted by time. Each size class has the messages up to its number of bytes. For Inspector in "
            "Prometheus mode: Inspector's means, by Inspector's size classes.",
            Query(bus_bandwidth("collective, size"), "{{collective}} ≤ {{size}} B"),
            Query(
                f"max by ({MEANS}) (rankwatch_inspector_mean_bus_bandwidth_bytes_per_second{{{RANK}}})",
                "{{operation}} {{message_size}} {{comm_name}} {{comm}} {{ranks}} {{algo_proto}}",
            ),
            unit="Bps",
            nothing=NO_RECORDS,
            size=TALL,
        ),
        lines(
            "Time in collectives",
            "Share of wall time with collectives on the GPU, including waits; above 100 % collectives overlap.",
            Query(
                named(rate_of("rankwatch_collective_seconds_total", RANK, COLLECTIVE), OPERATIONS),
                "{{collective}} {{comm_name}} {{comm}}",
            ),
            unit="percentunit",
            nothing=NO_RECORDS,
            size=TALL,
        ),
    ]


def lateness(late_share: float) -> Panel:
    """Return the panel on lateness. ``late_share``: the share of wall time that makes the rank late."""
    return lines(
        "Share of time that others waited for this rank",
        "The greatest share of all communicators; and the share of each communicator in which only this rank is late.",
        Query(LATENESS, "most"),
        Query(named(f"max by (comm) ({LATE})", LATE), "late in {{comm_name}} {{comm}}"),
        unit="percentunit",
        nothing=NO_RECORDS,
        size=TALL,
        steps=Steps("green", {late_share: "red"}),
    )


def p2p() -> Panel:
    """Return the panel on sends and receives."""
    moved = rate_of("rankwatch_p2p_bytes_total", RANK, DIRECTION)
    bandwidth = ratio(moved, rate_of("rankwatch_p2p_seconds_total", RANK, DIRECTION))
    return lines(
        "Bandwidth of sends and receives",
        "Mean weighted by time, including waits for the peer. The value is too low if a send and a receive share a "
        "kernel.",
        Query(named(bandwidth, P2P_OPERATIONS), "{{direction}} {{comm_name}} {{comm}}"),
        unit="Bps",
        nothing=NO_RECORDS,
        size=WHOLE,
    )
