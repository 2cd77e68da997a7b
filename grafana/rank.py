"""The Rank dashboard: everything known about one rank."""

from grafana import rank_speed
from grafana.cells import timeline
from grafana.panels import HALF, NO_RECORDS, NONE_KNOWN, WHOLE, Panel, Query, Size, Steps, lines, stats
from grafana.queries import (
    CLUSTER,
    JOB,
    PROCESS_STATES,
    RANK,
    STATES,
    Value,
    code_by,
    coverage,
    endings,
    lateness,
    latest,
    rate_of,
    silence,
)
from grafana.tables import rows

STATES_INTERVAL = "15s"

STARTED = f"max({latest(f'rankwatch_rank_start_timestamp_seconds{{{RANK}}}')})"
LEFT = f"max({latest(f'rankwatch_rank_exit_timestamp_seconds{{{RANK}}}')})"
SEEN = f"max(max_over_time(timestamp(rankwatch_rank_up{{{RANK}}} == 1)[$__range:15s]))"

ITS_NODE = f"and on (cluster, node) rankwatch_rank_up{{{RANK}}}"
ITS_GPU = f"and on (cluster, node, gpu_uuid) rankwatch_rank_info{{{RANK}}}"

FOLDED = frozenset({"Identity", "Process, GPU and node", "Point to point, and records"})


def panels(late_share: float) -> dict[str, list[Panel]]:
    """Return the panels by row title. ``late_share``: the share of wall time that makes a rank late."""
    return {
        "": [*_summary(late_share), *_states(), _where()],
        "Identity": _identity(),
        "Collectives": [*rank_speed.collectives(), rank_speed.lateness(late_share)],
        "Process, GPU and node": _on_its_node(),
        "Point to point, and records": [rank_speed.p2p(), _records()],
    }


def _state(label: str, metric: str, states: dict[str, Value]) -> str:
    return code_by(label, states, lambda state: f'{metric}{{{RANK}, state="{state}"}}')


def _summary(late_share: float) -> list[Panel]:
    return [
        stats(
            "State",
            "From the agent of each node that runs or ran the rank.",
            Query(_state("node", "rankwatch_rank_state", STATES), "{{node}}"),
            states=STATES,
        ),
        stats(
            "Age and silence",
            "Run time of the rank's latest process; while it runs, time since its last operation (from records).",
            Query(f"(({LEFT} >= {STARTED}) or {SEEN}) - {STARTED}", "age"),
            Query(silence(RANK), "silence"),
            unit="s",
            overrides={"silence": {"thresholds": Steps("green", {60: "yellow", 300: "red"}).build().build()}},
        ),
        stats(
            "Bus bandwidth",
            "Mean of all collectives, weighted by time: a late rank waits least, so its bandwidth is highest. "
            "coverage: the share of operations with a record.",
            Query(rank_speed.bus_bandwidth(""), "bandwidth"),
            Query(coverage(RANK), "coverage"),
            unit="Bps",
            overrides={"coverage": {"unit": "percentunit"}},
        ),
        stats(
            "Time that others wait",
            "Share of wall time that a communicator waited for this rank (the communicator with the greatest share).",
            Query(f"max({lateness(RANK)})"),
            unit="percentunit",
            steps=Steps("green", {late_share: "red"}),
        ),
    ]


def _states() -> list[Panel]:
    return [
        timeline(
            "State over time",
            "From the agent of each node that runs or ran the rank.",
            Query(_state("node", "rankwatch_rank_state", STATES), "{{node}}"),
            size=Size(12, 5),
            states=STATES,
        ).interval(STATES_INTERVAL),
        timeline(
            "Process over time",
            "State of the process's main thread. disk_sleep: blocked on a device or file system. stopped: by a "
            "signal. traced: by a debugger.",
            Query(_state("node", "rankwatch_rank_process_state", PROCESS_STATES), "{{node}}"),
            size=Size(12, 5),
            states=PROCESS_STATES,
        ).interval(STATES_INTERVAL),
    ]


def _where() -> Panel:
    facts = ("node", "local_rank", "gpu", "gpu_uuid", "pci", "nic", "pid", "user", "pod", "container")
    return rows(
        "Where it runs",
        "Facts about the rank, to find it on its node, and when it was last seen alive. Empty: not known.",
        Query(
            f"1000 * max by ({', '.join(facts)}) (\n"
            f"  max_over_time(timestamp(rankwatch_rank_info{{{RANK}}})[$__range:15s])\n)"
        ),
        columns=facts,
        value="last seen",
        unit="dateTimeAsIso",
        size=Size(24, 4),
    )


def _identity() -> list[Panel]:
    members = f"max by (comm, comm_rank) ({latest(f'rankwatch_communicator_member_info{{{RANK}}}')})"
    communicators = latest(f"rankwatch_communicator_info{{{JOB}}}")
    names = (
        f"topk by (comm) (1, max by (comm, comm_name, ranks, nodes) ({communicators}))\n"
        f"      or on (comm)\n    group by (comm) ({members})"
    )
    return [
        rows(
            "How it ended",
            "When and how the rank's processes ended in the time shown.",
            Query(endings(RANK, "node, reason, signal, code", all_shown=True)),
            columns=("node", "reason", "signal", "code"),
            value="left at",
            unit="dateTimeAsIso",
            size=HALF,
        ),
        rows(
            "Communicators",
            "This rank's number in each communicator; the communicator's name and size if known. nodes: NVLink "
            "domains.",
            Query(f"{members}\n  * on (comm) group_left (comm_name, ranks, nodes) (\n    {names}\n  )"),
            columns=("comm", "comm_name", "comm_rank", "ranks", "nodes"),
            size=HALF,
            sort_by="comm_name",
        ),
    ]


def _records() -> Panel:
    return lines(
        "Operations with a record, and without one by cause",
        "overflow: Inspector's ring buffer was full; a shorter dump interval helps. one_slot: NCCL 2.28 and 2.29 "
        "store one operation between two dumps. filtered_or_lost: mostly operations below 8 KiB. timed by: records "
        "without the GPU's own time, which count in no bandwidth.",
        Query(rate_of("rankwatch_inspector_seen_records_total", RANK), "with a record"),
        Query(rate_of("rankwatch_inspector_missing_records_total", RANK, "cause"), "{{cause}}"),
        Query(rate_of("rankwatch_inspector_untimed_operations_total", RANK, "timing"), "timed by {{timing}}"),
        unit="ops",
        nothing=NO_RECORDS,
        size=WHOLE,
    )


def _on_its_node() -> list[Panel]:
    groups = f"rankwatch_job_pressure_waiting_seconds_total{{{JOB}}}"
    throttled = f"rankwatch_job_cpu_throttled_seconds_total{{{JOB}}}"
    return [
        lines(
            "CPU usage",
            "CPU time per second, of the rank's process and of the children of this process (data loaders).",
            Query(rate_of("rankwatch_rank_cpu_seconds_total", RANK, "part"), "{{part}}"),
            unit="short",
        ),
        lines(
            "Waiting time",
            "Share of wall time over the rank's threads: ready but waiting for a CPU, or waiting for disks. group: "
            "share of time in which a task of the job's control groups on this node waited, or the CPU limit "
            "stopped all tasks.",
            Query(rate_of("rankwatch_rank_wait_seconds_total", RANK, "resource"), "for {{resource}}"),
            Query(f"max by (resource) (rate({groups}[$__rate_interval]) {ITS_NODE})", "group: {{resource}}"),
            Query(f"max(rate({throttled}[$__rate_interval]) {ITS_NODE})", "group: CPU limit"),
            unit="percentunit",
        ),
        lines(
            "Threads that hang, children that are stopped",
            "Threads of the rank's process and of its children in uninterruptible sleep, by what they wait for; and "
            "stopped children.",
            Query(f"max by (wait) (rankwatch_rank_blocked_threads{{{RANK}}})", "{{wait}}"),
            Query(f"max(rankwatch_rank_children_stopped{{{RANK}}})", "stopped"),
            unit="short",
            nothing=NONE_KNOWN,
        ),
        lines(
            "Memory",
            "Memory of the rank's process: resident, and swapped out.",
            Query(f"max by (state) (rankwatch_rank_memory_bytes{{{RANK}}})", "{{state}}"),
            unit="bytes",
            size=HALF,
        ),
        lines(
            "GPU activity",
            "Share of busy compute units (sm), of time with tensor operations, and of used memory bandwidth (dram); "
            "only GPUs that report this (from Hopper and MI300 on). A waiting collective keeps only a few units "
            "busy.",
            Query(f"max by (unit) (rankwatch_gpu_active_ratio{{{CLUSTER}}} {ITS_GPU})", "{{unit}}"),
            unit="percentunit",
            size=HALF,
            most=1,
        ),
    ]
