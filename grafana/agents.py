"""The Agent dashboard: whether the agents work, and their cost.

If there are many nodes, it shows only the worst nodes.
"""

from grafana.panels import BAD_FROM_ONE, HALF, QUARTER, Panel, Query, lines, stats
from grafana.queries import CLUSTER, WORST, rate_of, worst
from grafana.tables import rows

LISTED = 64
NAME = "{{node}} {{cluster}}"
TIME = f"rankwatch_node_time_seconds{{{CLUSTER}}}"
SILENT = f"node:rankwatch_fails:bool{{{CLUSTER}}}"
OURS = f"and on (cluster, instance) rankwatch_build_info{{{CLUSTER}}}"
"""Restricts a metric that other programs export, too, to the series of agents."""


def panels() -> dict[str, list[Panel]]:
    """Return the panels by row title."""
    return {"": [*_summary(), *_troubles()], "Cost": _costs(), "Records, failures and limits": _losses()}


def _summary() -> list[Panel]:
    return [
        stats(
            "Agents",
            "Agents that answer, and nodes whose agent cannot be scraped.",
            Query(f"count(node:rankwatch_heard:time{{{CLUSTER}}})", "answer"),
            Query(f"count({SILENT}) or vector(0)", "silent"),
            overrides={"silent": BAD_FROM_ONE},
        ),
        rows(
            "Versions",
            "Number of agents by version; there are several versions while an upgrade is under way.",
            Query(f"count by (version) (rankwatch_build_info{{{CLUSTER}}})"),
            columns=("version",),
            value="agents",
            size=QUARTER,
        ),
        stats(
            "Refused configurations",
            "Agents that refused their newest configuration; the previous configuration stays in use.",
            Query(f"sum(1 - rankwatch_config_last_reload_successful{{{CLUSTER}}})", "refused"),
            overrides={"refused": BAD_FROM_ONE},
        ),
        stats(
            "Series",
            "Series of all agents' exporters in their last scrape.",
            Query(f"sum(rankwatch_exporter_series{{{CLUSTER}}})"),
            unit="short",
        ),
    ]


def _troubles() -> list[Panel]:
    return [
        rows(
            "Exporters that fail",
            "Exporters that cannot read their source; the agent's page (/) on the node says why.",
            Query(
                f"max by (node, exporter, cluster) (rankwatch_exporter_up{{{CLUSTER}}} == 0\n"
                f"  and on (cluster, instance, exporter) rankwatch_exporter_source_present{{{CLUSTER}}} == 1)"
            ),
            columns=("node", "exporter", "cluster"),
            nothing="none",
        ),
        rows(
            "Silent agents",
            "Nodes whose agent cannot be scraped, and for how long, up to a day.",
            Query(
                f"topk({LISTED}, time() - max by (node, cluster) (\n"
                f"  last_over_time(node:rankwatch_silent:time{{{CLUSTER}}}[1d]) and on (cluster, node) {SILENT}\n))"
            ),
            columns=("node", "cluster"),
            value="silent",
            unit="s",
            nothing="none",
        ),
        rows(
            "Clocks",
            "Difference between the clock of each node and Prometheus' clock, the largest difference first.",
            Query(f"topk({LISTED}, max by (node, cluster) (abs({TIME} - timestamp({TIME}))))"),
            columns=("node", "cluster"),
            value="difference",
            unit="s",
        ),
    ]


def _costs() -> list[Panel]:
    cpu = f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])"
    return [
        lines(
            "CPU",
            f"Share of one core that an agent uses, without its helper processes; the {WORST} highest.",
            Query(worst(f"max by (node, cluster) ({cpu}\n  {OURS})"), NAME),
            unit="percentunit",
        ),
        lines(
            "Memory",
            f"Resident memory of an agent, without its helper processes; the {WORST} highest.",
            Query(worst(f"max by (node, cluster) (process_resident_memory_bytes{{{CLUSTER}}}\n  {OURS})"), NAME),
            unit="bytes",
        ),
        lines(
            "Event loop",
            f"Greatest delay of an agent's event loop in the last minute; the {WORST} worst.",
            Query(worst(f"max by (node, cluster) (rankwatch_event_loop_lag_seconds{{{CLUSTER}}})"), NAME),
            unit="s",
        ),
        lines(
            "Duration of updates",
            "Duration of each exporter's last update, on the slowest agent.",
            Query(f"max by (exporter) (rankwatch_exporter_update_duration_seconds{{{CLUSTER}}})", "{{exporter}}"),
            unit="s",
            size=HALF,
        ),
        lines(
            "Series by exporter",
            "Series of all agents, by exporter.",
            Query(f"sum by (exporter) (rankwatch_exporter_series{{{CLUSTER}}})", "{{exporter}}"),
            unit="short",
            size=HALF,
        ),
    ]


def _losses() -> list[Panel]:
    return [
        lines(
            "Operations with a record",
            "Mean share of operations with a record of Inspector, over all communicators; the plugin filtered or "
            "lost the others.",
            Query(f"1 / avg(comm_node:rankwatch_operations:per_record{{{CLUSTER}}})", "coverage"),
            unit="percentunit",
            most=1,
        ),
        lines(
            "Failed updates",
            "Failed updates per second, by exporter.",
            Query(rate_of("rankwatch_exporter_updates_failed_total", CLUSTER, "exporter"), "{{exporter}}"),
            unit="cps",
            nothing="none failed",
        ),
        lines(
            "Series dropped",
            "Series per second that a limit left out, by exporter.",
            Query(rate_of("rankwatch_exporter_series_dropped_total", CLUSTER, "exporter"), "{{exporter}}"),
            unit="cps",
        ),
    ]
