"""The Node dashboard's rows on links: NVLink and XGMI between GPUs, RDMA and network devices between nodes."""

from __future__ import annotations

from grafana.cells import timeline
from grafana.panels import Panel, Query, Size, Steps, lines, rows
from grafana.queries import NODE, Value, rate_of

HALF = Size(12)
SHOWN_COUNTERS = 8
ACTIVE = 4
PORT_STATES = {
    "down": Value(1, "red"),
    "init": Value(2, "orange"),
    "armed": Value(3, "yellow"),
    "active": Value(ACTIVE, "green"),
    "active, defers": Value(5, "green"),
}
"""As the kernel counts them (ib_verbs.h)."""
PORT = "device, port"
TRANSPORT_ERRORS = ".*err.*|.*retrans.*|.*retx.*|.*nak.*|.*timeout.*|.*_events"
"""Counters of mlx5, bnxt_re, efa and ionic."""
FLAGGED_SHARE = 0.5
"""From here on the agent calls an NVLink bad."""


def gpu_links() -> list[Panel]:
    """Return the panels on links between GPUs."""
    xgmi = f'rankwatch_gpu_ras_errors_total{{{NODE}, block="xgmi_wafl"}}'
    return [
        lines(
            "NVLink traffic",
            "Data over all links of the GPU.",
            Query(rate_of("rankwatch_nvlink_data_bytes_total", NODE, "gpu, direction"), "{{gpu}} {{direction}}"),
            unit="Bps",
            size=HALF,
        ),
        lines(
            "NVLinks up",
            "Links of the GPU that are up, of those that were up at some time since the boot.",
            Query(f"max by (gpu) (rankwatch_nvlink_links_up{{{NODE}}})", "{{gpu}}"),
            unit="short",
            size=HALF,
        ),
        lines(
            "NVLinks that make errors",
            "Share of the last five minutes' looks in which the GPU's worst link had made errors.",
            Query(f"max by (gpu) (rankwatch_nvlink_flagged_ratio{{{NODE}}})", "{{gpu}}"),
            unit="percentunit",
            size=HALF,
            most=1,
            steps=Steps("green", {FLAGGED_SHARE: "red"}),
        ),
        lines(
            "Errors of XGMI and NVLink",
            "XGMI: since the driver was loaded; NVLink: per second, by kind.",
            Query(f"max by (gpu, type) ({xgmi})", "XGMI {{gpu}} {{type}}"),
            Query(rate_of("rankwatch_nvlink_errors_total", NODE, "gpu, kind"), "NVLink {{gpu}} {{kind}}"),
            unit="short",
            size=HALF,
        ),
    ]


def nics() -> list[Panel]:
    """Return the panels on RDMA devices and network devices."""
    rate, best = (
        f"max by ({PORT}) ({name}{{{NODE}}})"
        for name in ("rankwatch_rdma_port_rate_bytes_per_second", "rankwatch_rdma_port_rate_best_bytes_per_second")
    )
    state = f"max by ({PORT}) (rankwatch_rdma_port_state_id{{{NODE}}})"
    counters = [
        rate_of(
            f"rankwatch_rdma_{kind}_counter_total",
            f'{NODE}, counter=~"{names}", counter!~".*_bytes"',  # of what was sent again: no count would be seen
            "device, counter",
        )
        for kind, names in (("port", ".*err.*|.*discards"), ("hardware", TRANSPORT_ERRORS))
    ]
    pauses = rate_of("rankwatch_netdev_pause_frames_total", NODE, "device, direction, priority")
    return [
        timeline(
            "Ports",
            "The logical state of each RDMA port.",
            Query(state, "{{device}} {{port}}"),
            size=HALF,
            states=PORT_STATES,
        ),
        lines(
            "Rate against the best since the boot",
            "Below 100 % the port has negotiated fewer lanes or a lower speed than it once had.",
            Query(
                f"{rate}\n  / (\n    {best}\n      or\n    {rate} and on ({PORT}) {state} == {ACTIVE}\n  )",
                "{{device}} {{port}}",
            ),
            unit="percentunit",
            size=HALF,
        ),
        lines(
            "RDMA traffic",
            "Data that the ports received and sent.",
            Query(rate_of("rankwatch_rdma_received_bytes_total", NODE, "device"), "{{device}} received"),
            Query(rate_of("rankwatch_rdma_transmitted_bytes_total", NODE, "device"), "{{device}} sent"),
            unit="Bps",
            size=HALF,
        ),
        lines(
            "Links lost",
            "Since the counters began: losses of RDMA links, and changes of network devices' carrier (two for each).",
            Query(f"max by ({PORT}) (rankwatch_rdma_link_downed_total{{{NODE}}})", "{{device}} {{port}}"),
            Query(f"max by (device) (rankwatch_netdev_carrier_changes_total{{{NODE}}})", "{{device}} carrier"),
            unit="short",
            size=HALF,
        ),
        lines(
            "RDMA errors per second",
            f"Of the ports' link and of the devices' transport, the {SHOWN_COUNTERS} fastest of each.",
            *(Query(f"topk({SHOWN_COUNTERS}, {each})", "{{device}} {{counter}}") for each in counters),
            unit="cps",
            size=HALF,
        ),
        lines(
            "Packets dropped by network devices",
            "Per second: received and dropped for want of room, or received with an error.",
            Query(rate_of("rankwatch_netdev_receive_dropped_total", NODE, "device"), "{{device}} dropped"),
            Query(rate_of("rankwatch_netdev_receive_errors_total", NODE, "device"), "{{device}} with an error"),
            unit="cps",
            size=HALF,
        ),
        lines(
            "Pause frames per second",
            f"The {SHOWN_COUNTERS} fastest: sent by a device that was full, received from a peer that was. By priority "
            "(PFC), or of the whole link.",
            Query(f"topk({SHOWN_COUNTERS}, {pauses})", "{{device}} {{direction}} {{priority}}"),
            unit="cps",
            size=HALF,
        ),
        rows(
            "Switches",
            "Which port of which switch each port is connected to, where the configuration names a file that says so.",
            Query(f"max by ({PORT}, switch, switch_port) (rankwatch_rdma_switch_info{{{NODE}}})"),
            columns=("device", "port", "switch", "switch_port"),
            size=HALF,
            sort_by="device",
        ),
    ]
