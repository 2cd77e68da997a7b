"""The Node dashboard: the health of the hardware under the ranks. GPUs of every maker have the same panels."""

from grafana.panels import BAD_FROM_ONE, HALF, ODD_FROM_ONE, WHOLE, Panel, Query, lines, stats
from grafana.queries import CLUSTER, NODE, Value, latest, rate_of
from grafana.tables import rows

LISTED = 32
SHOWN_COUNTERS = 8
ACTIVE = 4
"""State of an active port (ib_verbs.h)."""
TRANSPORT_ERRORS = ".*err.*|.*retrans.*|.*retx.*|.*nak.*|.*timeout.*|.*_events"
"""Error counters of mlx5, bnxt_re, efa and ionic, as a pattern."""

FLAGGED_SHARE = 0.5
"""Share of updates with errors at which the agent calls an NVLink bad."""

ALERT = ("alertname", "severity", "alertstate", "job_id", "check", "name", "device", "path")
HUNG = f"node_path:rankwatch_storage_failed:bool{{{NODE}}}"

HEALTH = {"unhealthy": Value(0, "red"), "healthy": Value(1, "green")}

ERROR = ("gpu", "code", "meaning", "severity", "hurts", "role", "action")

FOLDED = frozenset({"NVLink, XGMI and NICs", "Kernel's log, storage and jobs before"})


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {
        "": [*_summary(), _ranks()],
        "GPUs": [*_gpus(), *_gpu_errors()],
        "NVLink, XGMI and NICs": _links(),
        "Kernel's log, storage and jobs before": [*_kernel_and_storage(), _died_first()],
    }


def _summary() -> list[Panel]:
    live = f"(rankwatch_rank_up{{{NODE}}} == 1)"
    return [
        stats(
            "Health",
            "Unhealthy while a check that counts has failed anywhere on the node; empty if the node has no checks.",
            Query(f"min(rankwatch_node_healthy{{{NODE}}})"),
            states=HEALTH,
        ),
        stats(
            "Ranks",
            "Live ranks on this node, and the number of them on failed hardware.",
            Query(f"sum(rankwatch_rank_up{{{NODE}}})", "live"),
            Query(
                f"sum(1 - rankwatch_rank_healthy{{{NODE}}} and on (cluster, job_id, rank) {live})", "on failed hardware"
            ),
            overrides={"on failed hardware": BAD_FROM_ONE},
        ),
        stats(
            "GPUs",
            "GPUs that were present since the boot, and the number of them that the driver does not reach.",
            Query(f"count(rankwatch_gpu_present{{{NODE}}})", "in all"),
            Query(f"sum(1 - rankwatch_gpu_present{{{NODE}}})", "lost"),
            overrides={"lost": BAD_FROM_ONE},
        ),
        stats(
            "RDMA ports",
            "Ports of RDMA devices, and the number of ports that are not active: their link was lost, or never cabled.",
            Query(f"count(rankwatch_rdma_port_state_id{{{NODE}}})", "in all"),
            Query(f"sum(rankwatch_rdma_port_state_id{{{NODE}}} < bool {ACTIVE})", "not active"),
            overrides={"not active": ODD_FROM_ONE},
        ),
        rows(
            "Failed checks",
            "Failed checks of GPUs (UUID), NICs (device) and the node, with their start. A failure ends when the "
            "agent sees the recovery.",
            Query(f"1000 * min by (check, kind, name) (rankwatch_check_failed_since_timestamp_seconds{{{NODE}}})"),
            columns=("check", "kind", "name"),
            value="since",
            unit="dateTimeAsIso",
            size=HALF,
        ),
        rows(
            "Alerts",
            "Alerts, pending or firing, about this node, its file systems, and the jobs that run on the node.",
            Query(
                f"max by ({', '.join(ALERT)}) (\n"
                f"  ALERTS{{{NODE}}}\n    or\n"
                f'  ALERTS{{{CLUSTER}, job_id!=""}} and on (cluster, job_id) rankwatch_rank_up{{{NODE}}}\n    or\n'
                f'  ALERTS{{{CLUSTER}, path!=""}} and on (cluster, path) {HUNG}\n'
                ")"
            ),
            columns=ALERT,
            size=HALF,
            sort_by="alertstate",
        ),
    ]


def _ranks() -> Panel:
    facts = ("job_id", "rank", "gpu", "gpu_uuid", "nic", "pid", "user")
    return rows(
        "Ranks here",
        f"At most {LISTED} live ranks, with their GPUs and the NICs near these GPUs. An empty cell: not known.",
        Query(f"topk({LISTED}, max by ({', '.join(facts)}) (rankwatch_rank_info{{{NODE}}}))"),
        columns=facts,
        size=WHOLE,
        sort_by="rank",
        links_to_rank=True,
    )


def _per_gpu(title: str, description: str, metric: str, unit: str) -> Panel:
    query = Query(f"max by (gpu) ({metric}{{{NODE}}})", "{{gpu}}")
    return lines(title, description, query, unit=unit)


def _gpus() -> list[Panel]:
    used = f"max by (gpu) (rankwatch_gpu_memory_used_bytes{{{NODE}}})"
    return [
        _per_gpu(
            "Utilisation",
            "Share of time in which a kernel ran. A GPU whose rank waits in a collective is busy, too.",
            "rankwatch_gpu_utilization_ratio",
            "percentunit",
        ),
        lines(
            "Memory",
            "Share of the GPU's memory that is allocated.",
            Query(f"{used}\n  / max by (gpu) (rankwatch_gpu_memory_bytes{{{NODE}}})", "{{gpu}}"),
            unit="percentunit",
            most=1,
        ),
        _per_gpu(
            "Power",
            "Power of the GPU with its memory. A GPU that draws less than the others works less.",
            "rankwatch_gpu_power_watts",
            "watt",
        ),
        lines(
            "Temperature",
            "Core and memory. For AMD GPUs the hottest spot of the core.",
            Query(f"max by (gpu, part) (rankwatch_gpu_temperature_celsius{{{NODE}}})", "{{gpu}} {{part}}"),
            unit="celsius",
        ),
        _per_gpu(
            "Clock",
            "Clock of the compute units. A GPU with a lower clock than the others makes its rank late.",
            "rankwatch_gpu_sm_clock_hertz",
            "hertz",
        ),
    ]


def _gpu_errors() -> list[Panel]:
    lowered = f'rate(rankwatch_gpu_clocks_event_seconds_total{{{NODE}, reason!="gpu_idle"}}[$__rate_interval])'
    return [
        lines(
            "Clocks lowered, by reason",
            "Share of time with lowered clocks, on the GPU with the largest share. hw_: by heat or the power brake.",
            Query(f"max by (reason) ({lowered})", "{{reason}}"),
            unit="percentunit",
        ),
        rows(
            "Errors that the drivers logged",
            "Xids and messages of AMD's driver in the last day: meaning, what the error affects, whether another "
            "error caused it, and the action that the maker recommends.",
            Query(f"1000 * max by ({', '.join(ERROR)}) (rankwatch_gpu_fault_last_timestamp_seconds{{{NODE}}})"),
            columns=ERROR,
            value="last at",
            unit="dateTimeAsIso",
            size=WHOLE,
        ),
    ]


def _kernel_and_storage() -> list[Panel]:
    events = f"max by (category, code) (rankwatch_kernel_event_last_timestamp_seconds{{{NODE}}})"
    return [
        rows(
            "Kernel's log",
            f"The last {LISTED} kinds of events since the boot. code: the number of an Xid, or a severity.",
            Query(f"1000 * topk({LISTED}, {events})"),
            columns=("category", "code"),
            value="last at",
            unit="dateTimeAsIso",
        ),
        lines(
            "Duration of storage probes",
            "Duration of the last probe or, if a probe hangs, its time so far.",
            Query(f"max by (path) (rankwatch_storage_probe_duration_seconds{{{NODE}}})", "{{path}}"),
            unit="s",
        ),
    ]


def _died_first() -> Panel:
    deaths = ("job_id", "user", "class", "cause")
    return rows(
        "Jobs that died here first",
        "Jobs of the time shown in which a rank on this node died first: class of the exit, and the cause if known.",
        Query(f"group by ({', '.join(deaths)}) ({latest(f'rank:rankwatch_dead:time{{{NODE}}}')})"),
        columns=deaths,
    )


def _links() -> list[Panel]:
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
            "PCIe packets sent again and NVLink errors, per second. XGMI errors: number since the driver was loaded.",
            Query(rate_of("rankwatch_gpu_pcie_replays_total", NODE, "gpu"), "PCIe {{gpu}}"),
            Query(rate_of("rankwatch_nvlink_errors_total", NODE, "gpu, kind"), "NVLink {{gpu}} {{kind}}"),
            Query(f"max by (gpu, type) ({xgmi})", "XGMI {{gpu}} {{type}}"),
            unit="short",
        ),
        lines(
            "RDMA traffic",
            "Data that the ports received and sent.",
            Query(rate_of("rankwatch_rdma_data_bytes_total", NODE, "device, direction"), "{{device}} {{direction}}"),
            unit="Bps",
        ),
        lines(
            "Errors of NICs per second",
            f"The {SHOWN_COUNTERS} counters of each kind with the highest rates: errors of RDMA links and transport, "
            "dropped packets, pause frames (by priority, or of the whole link).",
            *(Query(f"topk({SHOWN_COUNTERS}, {counter})", "{{device}} {{counter}}") for counter in counters),
            Query(rate_of("rankwatch_netdev_receive_losses_total", NODE, "device, reason"), "{{device}} {{reason}}"),
            Query(f"topk({SHOWN_COUNTERS}, {pauses})", "{{device}} pause {{direction}} {{priority}}"),
            unit="cps",
        ),
    ]
