"""Write the Grafana dashboards into dashboards/: ``python -m grafana.build [DIRECTORY]``.

Needs grafana-foundation-sdk (a development dependency); Grafana needs the written files alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana import agents, fabric, fleet, job, node, rank
from grafana.panels import DATASOURCE, Panel
from grafana.queries import CLUSTER, JOB, endings

HERE = Path(__file__).resolve().parent
THRESHOLDS = HERE.parent / "deploy" / "prometheus" / "thresholds.yml"
TAG = "rankwatch"
LISTED_EXITS = 32
FIRST_CAUSE = (
    f"max by (category, rank) (\n"
    f"  1000 * rankwatch_job_log_first_root_timestamp_seconds{{{JOB}}}\n"
    f"    * on (cluster, instance, job_id) group_right () rankwatch_job_log_first_root_info{{{JOB}}}\n)"
)


def _events(name: str, color: str, query: str, title: str, *, at_value: bool = True) -> dict[str, object]:
    """A kind of event in the time line: at its series' value (ms since the epoch), or for as long as it is there."""
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "iconColor": color,
        "expr": query,
        "step": "60s",
        "titleFormat": title,
        "useValueForTime": "on" if at_value else "",
    }


EVENTS = [
    _events("Marks", "purple", f"max by (text) (1000 * rankwatch_job_mark_timestamp_seconds{{{JOB}}})", "{{text}}"),
    _events(
        "Ranks that left",
        "orange",
        f"bottomk({LISTED_EXITS}, {endings(JOB, 'rank, node, reason, signal, code')})",
        "rank {{rank}} on {{node}}: {{reason}} {{signal}}{{code}}",
    ),
    _events("First cause by its own log", "yellow", FIRST_CAUSE, "{{category}}, rank {{rank}}"),
    _events(
        "Alerts",
        "red",
        f'max by (alertname, severity) (ALERTS{{{JOB}, alertstate="firing"}})',
        "{{alertname}} ({{severity}})",
        at_value=False,
    ),
]
"""What happened to a job; each kind can be switched off on the dashboard. Marks are set by `rankwatch mark`."""


def build(late_share: float) -> dict[str, str]:
    """Return the dashboards' JSON by file name; from ``late_share`` of wall time on a rank counts as late."""
    info = "rankwatch_build_info"  # of every node, also while no job runs
    cluster = _variable("cluster", "Cluster", f"label_values({info}, cluster)", models.VariableSort.ALPHABETICAL_ASC)
    cluster = cluster.include_all(True).all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    of_cluster = f"label_values(rankwatch_rank_up{{{CLUSTER}}}, job_id)"
    job_id = _variable("job_id", "Job", of_cluster, models.VariableSort.NUMERICAL_DESC)
    of_job = f"label_values(rankwatch_rank_up{{{JOB}}}, rank)"
    number = _variable("rank", "Rank", of_job, models.VariableSort.NUMERICAL_ASC)
    nodes = f"label_values({info}{{{CLUSTER}}}, node)"
    host = _variable("node", "Node", nodes, models.VariableSort.ALPHABETICAL_ASC)
    about_job = "One NCCL or RCCL job over all its nodes: is it whole, how fast is it, which rank does it wait for."
    about_rank = "One rank of a job: where it runs, how it ended, its bandwidth, who waits for it."
    about_node = "One node: is its hardware well, and the ranks on it: GPUs, NVLinks, NICs, the kernel's log, storage."
    about_fabric = "Links between GPUs and nodes: errors, losses, pauses, slow pairs, by node, rail and switch."
    about_fleet = (
        "All jobs and nodes: what is open, which jobs are in trouble, which nodes are not well, where time goes."
    )
    about_agent = "The agents themselves: do they answer, which exporters fail, what do they cost, what do they lose."
    dashboards = {
        "agent.json": _dashboard("Agent", about_agent, [cluster], agents.panels()),
        "fabric.json": _dashboard("Fabric", about_fabric, [cluster], fabric.panels()),
        "fleet.json": _dashboard("Fleet", about_fleet, [cluster], fleet.panels()),
        "job.json": _dashboard("Job", about_job, [cluster, job_id], job.panels(late_share)),
        "node.json": _dashboard("Node", about_node, [cluster, host], node.panels()),
        "rank.json": _dashboard("Rank", about_rank, [cluster, job_id, number], rank.panels(late_share)),
    }
    notes = {"job.json": EVENTS}
    return {name: _encode(each, notes.get(name, [])) for name, each in dashboards.items()}


def _variable(name: str, label: str, query: str, sort: models.VariableSort) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )


def _dashboard(
    title: str,
    description: str,
    variables: Sequence[builders.QueryVariable],
    rows: Mapping[str, Sequence[Panel]],
) -> models.Dashboard:
    link = builders.DashboardLink(TAG).type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    dashboard = (
        builders.Dashboard(f"rankwatch / {title}")
        .uid(f"{TAG}-{title.lower()}")
        .description(description)
        .tags([TAG])
        .editable()
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(link.keep_time(True).include_vars(True))
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in variables:
        dashboard = dashboard.with_variable(variable)
    for row, panels in rows.items():
        if row:
            dashboard = dashboard.with_row(builders.Row(row))
        for panel in panels:
            dashboard = dashboard.with_panel(panel)
    built = dashboard.build()
    for number, panel_or_row in enumerate(built.panels or (), start=1):
        panel_or_row.id_val = number
    return built


def _encode(dashboard: models.Dashboard, annotations: Sequence[Mapping[str, object]]) -> str:
    """As JSON; the SDK knows too little of annotations to have them at a series' value."""
    whole = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    if annotations:
        whole["annotations"] = {"list": list(annotations)}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(directory: Path) -> None:
    """Write the dashboards into ``directory``."""
    late_share = yaml.safe_load(THRESHOLDS.read_text())["late_share"]
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in build(late_share).items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "dashboards")
