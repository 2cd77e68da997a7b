"""Row of the Node dashboard on links: NVLink and XGMI between GPUs, RDMA and network devices between nodes."""

from __future__ import annotations

from grafana.panels import Panel, Query, Size, lines
from grafana.queries import NODE, rate_of

THIRD = Size(8)
SHOWN_COUNTERS = 8
ACTIVE = 4
"""State of an active port (ib_verbs.h)."""
TRANSPORT_ERRORS = ".*err.*|.*retrans.*|.*retx.*|.*nak.*|.*timeout.*|.*_events"
"""Error counters of mlx5, bnxt_re, efa and ionic, as a pattern."""

FLAGGED_SHARE = 0.5
"""Share of updates with errors at which the agent calls an NVLink bad."""


def panels() -> list[Panel]:
    """Return the row."""
    xgmi = f'rankwatch_gpu_ras_errors_total{{{NODE}, block="xgmi_wafl"}}'
    counters = [
        rate_of(
            f"rankwatch_rdma_{kind}_counter_total",
            f'{NODE}, counter=~"{names}", counter!~".*_bytes"',  # retransmitted bytes would dwarf the counts
            "device, counter",
        )
        for kind, names in (("port", ".*err.*|.*discards"), ("hardware", TRANSPORT_ERRORS))
    ]
    pauses = rate_of("rankwatch_netdev_pause_frames_total", NODE, "device, direction, priority")
    return [
        lines(
            "Errors of PCIe, NVLink and XGMI",
            "PCIe packets sent again and errors of NVLinks, per second. XGMI: since the driver was loaded.",
            Query(rate_of("rankwatch_gpu_pcie_replays_total", NODE, "gpu"), "PCIe {{gpu}}"),
            Query(rate_of("rankwatch_nvlink_errors_total", NODE, "gpu, kind"), "NVLink {{gpu}} {{kind}}"),
            Query(f"max by (gpu, type) ({xgmi})", "XGMI {{gpu}} {{type}}"),
            unit="short",
            size=THIRD,
        ),
        lines(
            "RDMA traffic",
            "Data that the ports received and sent.",
            Query(rate_of("rankwatch_rdma_data_bytes_total", NODE, "device, direction"), "{{device}} {{direction}}"),
            unit="Bps",
            size=THIRD,
        ),
        lines(
            "Errors of NICs per second",
            f"The {SHOWN_COUNTERS} fastest of each kind: errors of RDMA links and transport, packets dropped, pause "
            "frames (by priority, or of the whole link).",
            *(Query(f"topk({SHOWN_COUNTERS}, {each})", "{{device}} {{counter}}") for each in counters),
            Query(rate_of("rankwatch_netdev_receive_losses_total", NODE, "device, reason"), "{{device}} {{reason}}"),
            Query(f"topk({SHOWN_COUNTERS}, {pauses})", "{{device}} pause {{direction}} {{priority}}"),
            unit="cps",
            size=THIRD,
        ),
    ]
