"""Panels of a rank's usage on its node: what its process uses and waits for, and what keeps its GPU busy."""

from __future__ import annotations

from grafana.panels import NONE_KNOWN, Panel, Query, Size, lines
from grafana.queries import CLUSTER, JOB, RANK, rate_of

THIRD = Size(8)
ITS_NODE = f"and on (cluster, node) rankwatch_rank_up{{{RANK}}}"
ITS_GPU = f"and on (cluster, node, gpu_uuid) rankwatch_rank_info{{{RANK}}}"


def panels() -> list[Panel]:
    """Return the panels."""
    groups = f"rankwatch_job_pressure_waiting_seconds_total{{{JOB}}}"
    throttled = f"rankwatch_job_cpu_throttled_seconds_total{{{JOB}}}"
    return [
        lines(
            "CPUs that it uses",
            "CPU time per second, of its process and of its children (data loaders).",
            Query(rate_of("rankwatch_rank_cpu_seconds_total", RANK, "part"), "{{part}}"),
            unit="short",
            size=THIRD,
        ),
        lines(
            "Time that it waits",
            "Share of wall time over all threads: ready but waiting for a CPU, or waiting for disks. For its job's "
            "control groups on the node: a task waited for CPU, memory or I/O, or the CPU limit stopped all tasks.",
            Query(rate_of("rankwatch_rank_wait_seconds_total", RANK, "resource"), "for {{resource}}"),
            Query(f"max by (resource) (rate({groups}[$__rate_interval]) {ITS_NODE})", "group: {{resource}}"),
            Query(f"max(rate({throttled}[$__rate_interval]) {ITS_NODE})", "group: CPU limit"),
            unit="percentunit",
            size=THIRD,
        ),
        lines(
            "Threads that hang, children that are stopped",
            "Threads of the process and its children in uninterruptible sleep, by their wait; stopped children.",
            Query(f"max by (wait) (rankwatch_rank_blocked_threads{{{RANK}}})", "{{wait}}"),
            Query(f"max(rankwatch_rank_children_stopped{{{RANK}}})", "stopped"),
            unit="short",
            nothing=NONE_KNOWN,
            size=THIRD,
        ),
        lines(
            "Memory",
            "Of its process: resident, and swapped out.",
            Query(f"max by (state) (rankwatch_rank_memory_bytes{{{RANK}}})", "{{state}}"),
            unit="bytes",
            size=Size(12),
        ),
        lines(
            "What its GPU is busy with",
            "Shares of compute units that were busy, that did tensor operations, and of the memory's bandwidth; only "
            "GPUs that report it (from Hopper and MI300 on). A waiting collective keeps only a few units busy.",
            Query(f"max by (unit) (rankwatch_gpu_active_ratio{{{CLUSTER}}} {ITS_GPU})", "{{unit}}"),
            unit="percentunit",
            size=Size(12),
            most=1,
        ),
    ]
