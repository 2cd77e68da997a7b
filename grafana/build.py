"""Write the Grafana dashboards: ``python -m grafana.build [--output DIRECTORY] [--thresholds my.yml] [--archive ZIP]``.

A site's own file (my.yml) replaces lines of deploy/prometheus/thresholds.yml. The dashboards use two of its values: the
share of time that makes a rank late, and the runbooks' address. The build needs grafana-foundation-sdk (a development
dependency); Grafana needs only the written files.
"""

import argparse
import itertools
import json
import zipfile
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import yaml
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana import agents, events, fabric, fleet, job, launchers, node, rank
from grafana.panels import DATASOURCE, RUNBOOKS, Panel
from grafana.queries import CLUSTER, JOB

HERE = Path(__file__).resolve().parent
THRESHOLDS = HERE.parent / "deploy" / "prometheus" / "thresholds.yml"
TAG = "rankwatch"
OLDEST_GRAFANA = "11.6.0"


def build(late_share: float, runbooks: str) -> dict[str, str]:
    """Return the dashboards' JSON by file name.

    ``late_share``: share of wall time that makes a rank late. ``runbooks``: the runbooks' address.
    """
    info = "rankwatch_build_info"  # every node has this series, even without jobs
    cluster = _variable("cluster", "Cluster", f"label_values({info}, cluster)", models.VariableSort.ALPHABETICAL_ASC)
    cluster = cluster.include_all(True).all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    of_cluster = f"label_values(rankwatch_rank_up{{{CLUSTER}}}, job_id)"
    job_id = _variable("job_id", "Job", of_cluster, models.VariableSort.NUMERICAL_DESC)
    of_job = f"label_values(rankwatch_rank_up{{{JOB}}}, rank)"
    number = _variable("rank", "Rank", of_job, models.VariableSort.NUMERICAL_ASC)
    nodes = f"label_values({info}{{{CLUSTER}}}, node)"
    host = _variable("node", "Node", nodes, models.VariableSort.ALPHABETICAL_ASC)
    about_job = (
        "One NCCL or RCCL job over all its nodes: whether it is complete, its speed, and the rank that it waits for."
    )
    about_launchers = (
        "Reports of a job's launcher (NVRx, NIXL-EP, madengine), queries of RAS, and operations with records."
    )
    about_rank = "One rank of a job: where it runs, how it ended, its bandwidth, and which ranks wait for it."
    about_node = "One node: its ranks, and the health of its GPUs, NVLinks, NICs and storage, with the kernel's log."
    about_fabric = "Links between GPUs and nodes: errors, losses, pauses, slow pairs, by node, rail and switch."
    about_fleet = "All jobs and nodes: firing alerts, jobs in trouble, unhealthy nodes, and where GPU time goes."
    about_agent = "The agents themselves: whether they answer, failing exporters, costs and losses."
    dashboards = {
        "agent.json": _dashboard("Agent", about_agent, [cluster], agents.panels()),
        "fabric.json": _dashboard("Fabric", about_fabric, [cluster], fabric.panels()),
        "fleet.json": _dashboard("Fleet", about_fleet, [cluster], fleet.panels()),
        "job.json": _dashboard("Job", about_job, [cluster, job_id], job.panels(late_share), job.FOLDED),
        "launchers.json": _dashboard("Launchers", about_launchers, [cluster, job_id], launchers.panels()),
        "node.json": _dashboard("Node", about_node, [cluster, host], node.panels(), node.FOLDED),
        "rank.json": _dashboard("Rank", about_rank, [cluster, job_id, number], rank.panels(late_share), rank.FOLDED),
    }
    return {name: _encode(dashboard, events.BY_DASHBOARD[name], runbooks) for name, dashboard in dashboards.items()}


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
    folded: Container[str] = (),
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
        if row in folded:
            closed = builders.Row(row).collapsed(True)
            for panel in panels:
                closed = closed.with_panel(panel)
            dashboard = dashboard.with_row(closed)
            continue
        if row:
            dashboard = dashboard.with_row(builders.Row(row))
        for panel in panels:
            dashboard = dashboard.with_panel(panel)
    built = dashboard.build()
    number = itertools.count(1)
    for panel_or_row in built.panels or ():
        panel_or_row.id_val = next(number)
        for inner in getattr(panel_or_row, "panels", None) or ():
            inner.id_val = next(number)
    return built


def _encode(dashboard: models.Dashboard, annotations: Sequence[Mapping[str, object]], runbooks: str) -> str:
    """Return a dashboard as JSON; adds annotations whose time is a series' value, which the SDK lacks."""
    whole = json.loads(json.dumps(dashboard, cls=JSONEncoder).replace(RUNBOOKS, runbooks))
    whole["annotations"] = {"list": list(annotations)}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def importable(text: str) -> str:
    """Return a dashboard in the format of grafana.com: Grafana prompts for the data source at the import."""
    whole = json.loads(text)
    source = {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}
    whole["__inputs"] = [source | {"description": "", "pluginName": "Prometheus"}]
    grafana = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": OLDEST_GRAFANA}
    prometheus = {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    whole["__requires"] = [grafana, prometheus]
    variable = whole["templating"]["list"][0]
    variable["current"] = {"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"}
    return json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(directory: Path, thresholds: Path = THRESHOLDS, archive: Path | None = None) -> None:
    """Write the dashboards into ``directory``, and all of them as importable files into the ZIP file ``archive``.

    ``thresholds``: a site's own file, as for build.py of the rules.
    """
    values = yaml.safe_load(THRESHOLDS.read_text()) | yaml.safe_load(thresholds.read_text())
    directory.mkdir(parents=True, exist_ok=True)
    texts = build(values["late_share"], values["runbooks"])
    for name, text in texts.items():
        (directory / name).write_text(text)
    if archive is not None:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in texts.items():
                file.writestr(f"rankwatch-{name}", importable(text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "dashboards", help="directory to write to")
    parser.add_argument("--thresholds", type=Path, default=THRESHOLDS, help="the site's lines of thresholds.yml")
    parser.add_argument("--archive", type=Path, metavar="ZIP", help="write importable files for other Grafanas, too")
    arguments = parser.parse_args()
    main(arguments.output, arguments.thresholds, arguments.archive)
