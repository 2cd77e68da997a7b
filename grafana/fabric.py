"""The Fabric dashboard: links, NICs and switches that disturb jobs.

If there are many nodes, it shows only the worst nodes.
"""

from grafana.node import ACTIVE, FLAGGED_SHARE
from grafana.panels import BAD_FROM_ONE, HALF, ODD_FROM_ONE, WHOLE, Panel, Query, Steps, lines, stats
from grafana.queries import CLUSTER, WORST, bus_bandwidth, rate_of, worst
from grafana.tables import rows

LINK_DOWNED = f'rankwatch_rdma_port_counter_total{{{CLUSTER}, counter="link_downed"}}'
FLAGGED = f"rankwatch_nvlink_flagged_ratio{{{CLUSTER}}}"
LISTED = 64
PAIR = ("job_id", "rank", "node", "peer", "peer_node", "cluster", "alertstate")


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {"": [*_summary(), *_tables()], "NICs": _nics(), "NVLink": _gpu_links(), "Jobs on the fabric": _jobs()}


def _summary() -> list[Panel]:
    state = f"rankwatch_rdma_port_state_id{{{CLUSTER}}}"
    return [
        stats(
            "RDMA ports",
            "Ports of all nodes, and the number of ports that are not active: their link was lost, or never cabled.",
            Query(f"count({state})", "in all"),
            Query(f"sum({state} < bool {ACTIVE})", "not active"),
            overrides={"not active": ODD_FROM_ONE},
        ),
        stats(
            "GPUs with a bad NVLink",
            "GPUs whose worst link had errors in at least half of the updates of the last five minutes.",
            Query(f"count({FLAGGED} >= {FLAGGED_SHARE}) or vector(0)"),
            steps=Steps("green", {1: "red"}),
        ),
        stats(
            "Links lost since the counters began",
            "Number of times that RDMA links of all nodes were lost.",
            Query(f"sum({LINK_DOWNED})"),
            unit="short",
        ),
        stats(
            "Open alerts on links",
            "Firing alerts about RDMA devices, slow pairs of ranks, slow communicators and slow transfers.",
            Query(
                f'count(ALERTS{{{CLUSTER}, alertname=~"Rdma.*|SlowPair|SlowCommunicator|SlowTransfers", '
                'alertstate="firing"}) or vector(0)',
                "alerts",
            ),
            overrides={"alerts": BAD_FROM_ONE},
        ),
    ]


def _tables() -> list[Panel]:
    lost = f"(round(increase({LINK_DOWNED}[$__range])) > 0)"
    return [
        rows(
            "Ports that are not active",
            "Ports that are not active, with their node: the link was lost, or never cabled.",
            Query(f"max by (node, device, port, cluster) (rankwatch_rdma_port_state_id{{{CLUSTER}}} < {ACTIVE})"),
            columns=("node", "device", "port", "cluster"),
            size=HALF,
            nothing="none",
        ),
        rows(
            "Links lost, by switch",
            "Number of times that each link was lost in the time shown. The switch comes from a site's file or from "
            "lldpd.",
            Query(
                f"topk({LISTED}, max by (node, device, port, switch, switch_port, cluster) (\n"
                f"  {lost} * on (cluster, instance, device, port) group_left (switch, switch_port)\n"
                f"    rankwatch_rdma_switch_info{{{CLUSTER}}}\n"
                f"    or on (cluster, instance, device, port)\n  {lost}\n))"
            ),
            columns=("node", "device", "port", "switch", "switch_port", "cluster"),
            value="lost",
            unit="short",
            size=HALF,
            nothing="no link was lost",
        ),
    ]


def _nics() -> list[Panel]:
    errors = 'max by (node, device, cluster) (device:rankwatch_rdma_errors:rate5m{{{}, of="{}"}})'
    port, transport = (errors.format(CLUSTER, of) for of in ("link", "transport"))
    pauses = rate_of("rankwatch_netdev_pause_frames_total", CLUSTER, "node, device, direction, cluster")
    traffic = rate_of("rankwatch_rdma_data_bytes_total", f'{CLUSTER}, direction="transmit"', "device")
    return [
        lines(
            "Errors of RDMA links",
            f"Link errors per second, from the ports' counters; the {WORST} worst devices.",
            Query(worst(port), "{{node}} {{device}} {{cluster}}"),
            unit="cps",
            nothing="none",
            size=HALF,
        ),
        lines(
            "Errors of RDMA transport",
            f"Retransmissions, timeouts and similar errors per second, from the devices' counters; the {WORST} worst.",
            Query(worst(transport), "{{node}} {{device}} {{cluster}}"),
            unit="cps",
            nothing="none",
            size=HALF,
        ),
        lines(
            "Pause frames",
            "Pause frames per second: sent by a device with a full buffer, or received from such a switch; the "
            f"{WORST} worst.",
            Query(worst(pauses), "{{node}} {{device}} {{direction}} {{cluster}}"),
            unit="cps",
            size=HALF,
        ),
        lines(
            "Data sent by rail",
            "Sent data by device name: one rail, if all nodes are cabled alike. A rail with a fault sends less than "
            "others.",
            Query(traffic, "{{device}}"),
            unit="Bps",
            size=HALF,
        ),
    ]


def _gpu_links() -> list[Panel]:
    return [
        lines(
            "NVLinks that make errors",
            f"Share of the last five minutes' updates in which a GPU's worst link had errors; the {WORST} worst GPUs.",
            Query(worst(f"max by (node, gpu, cluster) ({FLAGGED} > 0)"), "{{node}} {{gpu}} {{cluster}}"),
            unit="percentunit",
            size=WHOLE,
            most=1,
            steps=Steps("green", {FLAGGED_SHARE: "red"}),
            nothing="no NVLink makes errors",
        )
    ]


def _jobs() -> list[Panel]:
    return [
        lines(
            "Bus bandwidth of jobs",
            f"Mean over all collectives of a job; the {WORST} slowest jobs.",
            Query(f"bottomk({WORST}, {bus_bandwidth('job_id, cluster', CLUSTER)})", "{{job_id}} {{cluster}}"),
            unit="Bps",
            size=HALF,
            nothing="no records of Inspector",
        ),
        rows(
            "Slow pairs of ranks",
            "Pairs with the alert SlowPair, pending or firing: their messages get far less bandwidth than usual, or "
            f"than messages of similar pairs. At most {LISTED} pairs.",
            Query(f'topk({LISTED}, max by ({", ".join(PAIR)}) (ALERTS{{{CLUSTER}, alertname="SlowPair"}}))'),
            columns=PAIR,
            size=HALF,
            nothing="none",
        ),
    ]
