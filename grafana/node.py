"""The Node dashboard: is the hardware under the ranks well. GPUs of every maker have the same panels."""

from __future__ import annotations

from grafana import node_history, node_links
from grafana.node_links import ACTIVE
from grafana.panels import BAD_FROM_ONE, Panel, Query, Size, Steps, lines, rows, stats
from grafana.queries import CLUSTER, NODE, Value, rate_of

THIRD = Size(8)
HALF = Size(12)
QUARTER = Size(6, 4)
LISTED = 32

ALERT = ("alertname", "severity", "alertstate", "job_id", "check", "name", "device", "path")
HUNG = f"node_path:rankwatch_storage_failed:bool{{{NODE}}}"

HEALTH = {"unhealthy": Value(0, "red"), "healthy": Value(1, "green")}
PROBES = {"fails": Value(0, "red"), "answers": Value(1, "green")}

ERROR = ("gpu", "code", "meaning", "severity", "hurts", "role", "action")


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {
        "": [*_summary(), *_ranks()],
        "GPUs": [*_gpus(), *_gpu_errors()],
        "NVLink and XGMI": node_links.gpu_links(),
        "NICs": node_links.nics(),
        "Kernel's log and storage": _kernel_and_storage(),
        "What it did to jobs before": node_history.panels(),
    }


def _summary() -> list[Panel]:
    return [
        stats(
            "Health",
            "Unhealthy while a check that counts has failed anywhere on the node; nothing where nothing is checked.",
            Query(f"min(rankwatch_node_healthy{{{NODE}}})"),
            unit="none",
            size=QUARTER,
            states=HEALTH,
        ),
        stats(
            "Ranks",
            "Ranks that live here, and those of them on hardware that has failed.",
            Query(f"sum(rankwatch_rank_up{{{NODE}}})", "live"),
            Query(
                f"sum(1 - rankwatch_rank_healthy{{{NODE}}} and on (cluster, job_id, rank) {_live()})",
                "on failed hardware",
            ),
            unit="none",
            size=QUARTER,
            overrides={"on failed hardware": BAD_FROM_ONE},
        ),
        stats(
            "GPUs",
            "GPUs that were there since the boot, and those of them that the driver does not reach.",
            Query(f"count(rankwatch_gpu_present{{{NODE}}})", "in all"),
            Query(f"sum(1 - rankwatch_gpu_present{{{NODE}}})", "lost"),
            unit="none",
            size=QUARTER,
            overrides={"lost": BAD_FROM_ONE},
        ),
        stats(
            "RDMA ports",
            "Ports of RDMA devices, and those that are not active: lost, or never cabled.",
            Query(f"count(rankwatch_rdma_port_state_id{{{NODE}}})", "in all"),
            Query(f"sum(rankwatch_rdma_port_state_id{{{NODE}}} < bool {ACTIVE})", "not active"),
            unit="none",
            size=QUARTER,
            overrides={"not active": {"thresholds": Steps("green", {1: "yellow"}).build().build()}},
        ),
        rows(
            "Failed checks",
            "What is wrong with which GPU (its UUID), NIC (its device) or the node, since when. It ends when the agent "
            "sees the recovery.",
            Query(f"1000 * min by (check, kind, name) (rankwatch_check_failed_since_timestamp_seconds{{{NODE}}})"),
            columns=("check", "kind", "name"),
            value="since",
            unit="dateTimeAsIso",
            size=HALF,
            sort_by="since",
            descending=True,
        ),
        rows(
            "Alerts",
            "Alerts on this node and its file systems, and those of the jobs that run on it, pending or firing.",
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


def _live() -> str:
    return f"(rankwatch_rank_up{{{NODE}}} == 1)"


def _ranks() -> list[Panel]:
    facts = ("job_id", "rank", "gpu", "gpu_uuid", "nic", "pid", "user")
    return [
        rows(
            "Ranks here",
            f"Live ranks, their GPUs and the NICs near them, {LISTED} at most. What is empty is not known.",
            Query(f"topk({LISTED}, max by ({', '.join(facts)}) (rankwatch_rank_info{{{NODE}}}))"),
            columns=facts,
            size=Size(16),
            sort_by="rank",
            links_to_rank=True,
        ),
        rows(
            "What stands against ranks' hardware",
            "Failed checks that count, of the ranks' GPUs, the NICs near them and the node; of ranks that left, too.",
            Query(f"topk({LISTED}, max by (job_id, rank, reason) (rankwatch_rank_unhealthy{{{NODE}}}))"),
            columns=("job_id", "rank", "reason"),
            size=THIRD,
            sort_by="rank",
            links_to_rank=True,
        ),
    ]


def _per_gpu(title: str, description: str, metric: str, unit: str) -> Panel:
    query = Query(f"max by (gpu) ({metric}{{{NODE}}})", "{{gpu}}")
    return lines(title, description, query, unit=unit, size=THIRD)


def _gpus() -> list[Panel]:
    used = f"max by (gpu) (rankwatch_gpu_memory_used_bytes{{{NODE}}})"
    return [
        _per_gpu(
            "Utilisation",
            "Share of time in which a kernel ran. A rank that waits in a collective is busy, too.",
            "rankwatch_gpu_utilization_ratio",
            "percentunit",
        ),
        lines(
            "Memory",
            "Share of the GPU's memory that is allocated.",
            Query(f"{used}\n  / max by (gpu) (rankwatch_gpu_memory_bytes{{{NODE}}})", "{{gpu}}"),
            unit="percentunit",
            size=THIRD,
            most=1,
        ),
        _per_gpu(
            "Power",
            "Power of the GPU with its memory. One that draws less than the others does less.",
            "rankwatch_gpu_power_watts",
            "watt",
        ),
        _per_gpu(
            "Temperature",
            "Of the core; of AMD's GPUs the hottest spot.",
            "rankwatch_gpu_temperature_celsius",
            "celsius",
        ),
        _per_gpu(
            "Memory temperature",
            "Of the GPU's memory, where it is told.",
            "rankwatch_gpu_memory_temperature_celsius",
            "celsius",
        ),
        _per_gpu(
            "Clock",
            "Of the compute units. One that is lower than the others' makes its rank late.",
            "rankwatch_gpu_sm_clock_hertz",
            "hertz",
        ),
        _per_gpu(
            "Compute units busy",
            "Share of them, of GPUs that tell. A rank that waits in a collective keeps a few busy.",
            "rankwatch_gpu_sm_active_ratio",
            "percentunit",
        ),
        _per_gpu(
            "Tensor cores at work",
            "Share of time, of GPUs that tell. None while a rank waits, loads data or saves.",
            "rankwatch_gpu_tensor_active_ratio",
            "percentunit",
        ),
        _per_gpu(
            "Memory bandwidth used",
            "Share of what the GPU's memory can, of GPUs that tell.",
            "rankwatch_gpu_dram_active_ratio",
            "percentunit",
        ),
        rows(
            "Processes of others on ranks' GPUs",
            "Neither ranks nor of their job: they take time, memory and power from the rank.",
            Query(f"max by (gpu, user) (rankwatch_gpu_foreign_processes{{{NODE}}})"),
            columns=("gpu", "user"),
            value="processes",
            unit="none",
            size=HALF,
            sort_by="gpu",
        ),
    ]


def _gpu_errors() -> list[Panel]:
    lowered = f'rate(rankwatch_gpu_clocks_event_seconds_total{{{NODE}, reason!="gpu_idle"}}[$__rate_interval])'
    memory = f'rankwatch_gpu_ecc_errors_total{{{NODE}, lifetime="volatile"}}'
    return [
        lines(
            "PCIe packets sent again",
            "Per second. A steady rate is a bad slot, riser or switch.",
            Query(rate_of("rankwatch_gpu_pcie_replays_total", NODE, "gpu"), "{{gpu}}"),
            unit="cps",
            size=HALF,
        ),
        lines(
            "Clocks lowered, by reason",
            "Share of time, of the GPU where it is greatest; hw_ is the hardware's own: heat or the power brake. "
            "NVIDIA's alone.",
            Query(f"max by (reason) ({lowered})", "{{reason}}"),
            unit="percentunit",
            size=HALF,
        ),
        lines(
            "Memory errors since the driver was loaded",
            "Corrected ones are normal, a steady rise is wear. An uncorrected one ends what ran there.",
            Query(f"max by (gpu, type) ({memory})", "{{gpu}} {{type}}"),
            unit="short",
            size=HALF,
        ),
        rows(
            "Errors that the drivers told of",
            "Xids and what AMD's driver says, of the last day: meaning, who is hurt, whether another error caused it, "
            "and what its maker wants done.",
            Query(f"1000 * max by ({', '.join(ERROR)}) (rankwatch_gpu_fault_last_timestamp_seconds{{{NODE}}})"),
            columns=ERROR,
            value="last at",
            unit="dateTimeAsIso",
            size=Size(24),
            sort_by="last at",
            descending=True,
        ),
    ]


def _kernel_and_storage() -> list[Panel]:
    available = f"max by (path) (rankwatch_storage_available_bytes{{{NODE}}})"
    events = f"max by (category, code) (rankwatch_kernel_event_last_timestamp_seconds{{{NODE}}})"
    return [
        rows(
            "Kernel's log",
            f"What the kernel told of since the boot, the last {LISTED} kinds; code: an Xid's number, or a severity.",
            Query(f"1000 * topk({LISTED}, {events})"),
            columns=("category", "code"),
            value="last at",
            unit="dateTimeAsIso",
            size=HALF,
            sort_by="last at",
            descending=True,
        ),
        stats(
            "Storage",
            "Whether the last probe of each path was answered.",
            Query(f"min by (path) (rankwatch_storage_probe_success{{{NODE}}})", "{{path}}"),
            unit="none",
            size=HALF,
            states=PROBES,
        ),
        lines(
            "Duration of storage probes",
            "Of the last one, or of the one that hangs.",
            Query(f"max by (path) (rankwatch_storage_probe_duration_seconds{{{NODE}}})", "{{path}}"),
            unit="s",
            size=HALF,
        ),
        lines(
            "Room left",
            "Share of the path's file system that users may still write.",
            Query(f"{available}\n  / max by (path) (rankwatch_storage_size_bytes{{{NODE}}})", "{{path}}"),
            unit="percentunit",
            size=HALF,
            most=1,
        ),
    ]
