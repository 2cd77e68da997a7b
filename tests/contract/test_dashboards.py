"""The shipped dashboards: built from their source, consistent, and with existing metrics."""

from __future__ import annotations

import copy
import itertools
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from shipped import FAMILIES, GROUPS, RECORDED, ROOT
from test_site_files import values_of

from exporters.inspector.format.records import SIZE_BOUNDS
from grafana import build, job, job_goodput, queries

GRAFANA = ROOT / "grafana"
PATHS = sorted((GRAFANA / "dashboards").glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in PATHS}


def all_panels(name: str) -> list[dict[str, Any]]:
    """Return a dashboard's panels, including those in closed rows, without the rows."""
    listed = DASHBOARDS[name]["panels"]
    return [panel for outer in listed for panel in (outer, *outer.get("panels", ())) if panel["type"] != "row"]


PANELS = [panel for name in DASHBOARDS for panel in all_panels(name)]
TYPES = {"stat", "state-timeline", "status-history", "table", "timeseries"}
UNITS = {"none", "bytes", "Bps", "s", "percentunit", "ops", "cps", "short", "dateTimeAsIso", "watt", "celsius", "hertz"}
SUBJECTS = dict.fromkeys(("agent", "fabric", "fleet"), "cluster=~") | {
    "job": 'job_id="$job_id"',
    "launchers": 'job_id="$job_id"',
    "rank": 'job_id="$job_id"',
    "node": 'node="$node"',
}

"""The subject that every selector of a dashboard must have."""
GRAFANA_VARIABLES = {"__rate_interval", "__range", "__interval"}
SERIES = r"(?:ALERTS|(?:[a-z_]+:)?rankwatch_\w+(?::\w+)?)"
OF_ITS = re.compile(SERIES + r"\{[^}]*\}(?:\[\$__rate_interval\]\))? and on \(cluster(?:, \w+)+\) (?=\(?\s*[a-z_:]+\{)")
"""Series that `and on` joins with series of the dashboard's subject; their own selectors need no subject."""
CLUSTER = 'cluster=~"$cluster(^.*)?"'
SITE = yaml.safe_load((ROOT / "deploy" / "prometheus" / "thresholds.yml").read_text())
KNOWN = FAMILIES.keys() | RECORDED.keys()
"""The metrics of the agent and its exporters, and those that the shipped rules record."""
METRIC = re.compile(r"\b(?:[a-z_]+:)?rankwatch_\w+(?::\w+)?")
VARIABLE = re.compile(r"\$\{?([a-z_]\w*)")


def test_files_are_what_the_source_gives(tmp_path: Path) -> None:
    """A new build gives the same files, byte for byte."""
    build.main(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in PATHS}
    boards = ("agent", "fabric", "fleet", "job", "launchers", "node", "rank")
    assert made.keys() == {f"{board}.json" for board in boards}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_every_key(name: str) -> None:
    """Grafana's own model keeps every key of a dashboard except Prometheus' annotations."""
    plugins.register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(DASHBOARDS[name]), cls=JSONEncoder))
    expected = copy.deepcopy(DASHBOARDS[name])
    for annotation in expected["annotations"].get("list", ()):
        annotation |= {"hide": False, "builtIn": 0}
        for key in ("step", "titleFormat", "useValueForTime"):
            del annotation[key]
    assert again == expected


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard(name: str) -> None:
    """A dashboard has uid, title and tags, is editable, and is not bound to one installation."""
    dashboard = DASHBOARDS[name]
    assert (dashboard["uid"], dashboard["tags"]) == (f"rankwatch-{name}", ["rankwatch"])
    assert (dashboard["refresh"], dashboard["time"]) == ("30s", {"from": "now-1h", "to": "now"})
    assert dashboard["schemaVersion"] == 41
    assert dashboard["editable"] is True
    assert dashboard.get("id") is None
    assert "__inputs" not in dashboard
    [link] = dashboard["links"]
    assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == (
        "dashboards",
        ["rankwatch"],
        True,
        True,
    )


@pytest.mark.parametrize(("name", "variables"), [
    ("agent", ["cluster"]),
    ("fabric", ["cluster"]),
    ("fleet", ["cluster"]),
    ("job", ["cluster", "job_id"]),
    ("launchers", ["cluster", "job_id"]),
    ("rank", ["cluster", "job_id", "rank"]),
    ("node", ["cluster", "node"]),
])  # fmt: skip
def test_variables(name: str, variables: list[str]) -> None:
    """The variables are the data source, then the cluster (all by default), then the job or node, then the rank."""
    source, *others = DASHBOARDS[name]["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [variable["name"] for variable in others] == variables
    assert all(variable["type"] == "query" and variable["refresh"] == 2 for variable in others)
    cluster, *within = others
    assert (cluster["includeAll"], cluster["allValue"], cluster["current"]["value"]) == (True, ".*", "$__all")
    assert all(CLUSTER in variable["query"]["query"] for variable in within)


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [(".*", {"", "c1", "c1-b"}), ("", {"", "c1", "c1-b"}), ("c1", {"c1"}), ("c2", set()), ("c1-b", {"c1-b"})],
)
def test_an_empty_cluster_is_all_of_them(chosen: str, shown: set[str]) -> None:
    """The cluster selector matches every cluster if all or none are chosen, otherwise one."""
    match = re.fullmatch(r'cluster=~"(.*)"', queries.CLUSTER)
    wanted = match[1].replace("$cluster", chosen)
    assert {cluster for cluster in ("", "c1", "c1-b") if re.fullmatch(wanted, cluster)} == shown


@pytest.mark.parametrize("name", DASHBOARDS)
def test_data_source_is_the_variable(name: str) -> None:
    """Every panel, query and variable uses the data source variable."""
    datasources = list(values_of("datasource", DASHBOARDS[name]))
    assert datasources
    assert all(datasource == {"type": "prometheus", "uid": "${datasource}"} for datasource in datasources)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_layout(name: str) -> None:
    """Panels have unique numbers, do not overlap, and fill every line of 24 columns."""
    panels = [*(panel for panel in DASHBOARDS[name]["panels"] if panel["type"] == "row"), *all_panels(name)]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(set(cells)) == len(cells)
    bottom = max(y for _, y in cells) + 1
    assert set(cells) == set(itertools.product(range(24), range(bottom)))


def test_panel() -> None:
    """A panel has a type that every Grafana has, a description without line breaks, and a unit."""
    for panel in PANELS:
        assert panel["type"] in TYPES
        assert re.fullmatch(r"[A-Z][^\n]+\.|\w+: [^\n]+\.", panel["description"])
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["showLegend"] is True
            assert panel["fieldConfig"]["defaults"]["unit"] != "none"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_queries(name: str) -> None:
    """Queries select a cluster's job or node, known metrics and variables; two or more in a panel have legends."""
    for panel in all_panels(name):
        check_queries(panel, SUBJECTS[name])


def selectors(expression: str) -> list[str]:
    """Return the label matchers in braces after each series of an expression; empty if a series has none."""
    return re.findall(rf"\b{SERIES}(\{{[^}}]*\}})?", expression)


def check_queries(panel: dict[str, Any], subject: str) -> None:
    """Check that every selector of a panel's queries has ``subject``."""
    targets = panel["targets"]
    assert targets
    variables = {"cluster", "job_id", "rank", "node"} | GRAFANA_VARIABLES
    for target in targets:
        expression = target["expr"]
        metrics = set(METRIC.findall(expression))
        assert metrics <= KNOWN, metrics - KNOWN
        assert metrics or "ALERTS{" in expression
        assert set(VARIABLE.findall(expression)) <= variables
        assert all(CLUSTER in selector for selector in selectors(expression)), expression
        assert all(subject in selector for selector in selectors(OF_ITS.sub("", expression))), expression
        joins = [set(labels.split(", ")) for labels in re.findall(r" on \(([^)]*)\)", expression)]
        assert all("cluster" in labels for labels in joins if labels & {"job_id", "node", "instance"}), expression
        assert not re.search(r"rate\([^\[]+\[(?!\$__rate_interval)", expression)
        assert len(targets) == 1 or panel["type"] == "table" or target["legendFormat"]
    assert len({target["refId"] for target in targets}) == len(targets)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_kinds_of_events(name: str) -> None:
    """The annotations of a dashboard are events of its subject only, from existing metrics."""
    events = {annotation["name"]: annotation for annotation in DASHBOARDS[name]["annotations"]["list"]}
    of_job = {"Marks", "Ranks that left", "Starts", "First cause by its own log", "Alerts"}
    kinds = {"job": of_job, "launchers": of_job, "rank": of_job, "node": {"Ranks that left", "Alerts"}}
    assert set(events) == kinds.get(name, {"Pages"})
    for event in events.values():
        assert set(METRIC.findall(event["expr"])) <= KNOWN
        assert all(CLUSTER in selector and SUBJECTS[name] in selector for selector in selectors(event["expr"]))
        by = re.search(r"max by \(([^)]*)\)", event["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", event["titleFormat"])) == set(by[1].split(", "))


def test_states_colour_no_rank_numbers() -> None:
    """In tables with ranks and states only values have state names: rank 1 is not `alive`."""
    tables = [panel for panel in PANELS if panel["targets"][0]["format"] == "table"]
    mapped = [panel for panel in tables if "mappings" in json.dumps(panel["fieldConfig"])]
    assert [panel["title"] for panel in mapped] == ["Nodes by health", "Ranks now"]
    for panel in mapped:
        assert "mappings" not in panel["fieldConfig"]["defaults"]
        assert [override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]] == ["Value"]


def test_a_rank_that_is_not_there_is_not_rank_0() -> None:
    """Only tables in which every row has a rank show the rank as a number."""
    converted = {
        panel["title"]: [
            transformation["options"]["conversions"][0]["targetField"]
            for transformation in panel["transformations"][:1]
        ]
        for panel in PANELS
        if panel["type"] == "table" and panel["transformations"][0]["id"] == "convertFieldType"
    }
    assert "Alerts" not in converted
    assert converted["Ranks that left"] == ["rank"]


def test_panels_ask_no_oftener_than_there_is_news() -> None:
    """The minimum step of a panel is not shorter than the interval of its data."""
    asked = set(METRIC.findall(json.dumps(DASHBOARDS["job"])))
    used = [group for group in GROUPS if any(rule.get("record") in asked for rule in group["rules"])]
    slowest = max(int(group["interval"].removesuffix("s").replace("1m", "60")) for group in used)
    assert {panel["interval"] for panel in all_panels("job")} == {f"{slowest}s"}
    _, rest = yaml.safe_load((ROOT / "deploy/prometheus/scrape/static.yml").read_text())["scrape_configs"]
    states = [panel for panel in all_panels("rank") if panel["type"] == "state-timeline"]
    assert {panel["interval"] for panel in states} == {rest["scrape_interval"]}


def test_closed_rows_ask_nothing() -> None:
    """Rows that are empty for most jobs are closed, with their panels inside."""
    rows = {panel["title"]: panel for panel in DASHBOARDS["job"]["panels"] if panel["type"] == "row"}
    closed = {title for title, row in rows.items() if row["collapsed"]}
    assert closed == job.FOLDED
    assert all(bool(row.get("panels")) == (title in closed) for title, row in rows.items())


def test_time_that_is_lost_is_not_green() -> None:
    """Each class of GPU time has its own colour; only productive time is green."""
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "goodput.yml").read_text()
    classes = set(re.findall(r'"class",\s+"(\w+)"', rules)) | {"waiting"}  # time in no class
    assert set(job_goodput.COLORS) == classes
    assert len(set(job_goodput.COLORS.values())) == len(classes)
    assert job_goodput.COLORS["productive"] == "green"


def test_nothing_has_a_reason() -> None:
    """An empty table or graph shows a sentence, and a cell without a value is empty."""
    for panel in PANELS:
        config = panel["fieldConfig"]
        if panel["type"] in ("table", "timeseries"):
            assert config["defaults"]["noValue"]
        if panel["type"] == "table":
            empty = {"id": "noValue", "value": ""}
            assert [empty] in [
                override["properties"] for override in config["overrides"] if override["matcher"]["options"] == "/.*/"
            ]


def test_sizes_are_written_for_people() -> None:
    """Legends write every size class for people, such as 8 MiB."""
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    sized = [panel for panel in PANELS if "{{size}} B" in json.dumps(panel["targets"])]
    assert len(sized) == 3
    for panel in sized:
        renamed = [transformation["options"] for transformation in panel["transformations"]]
        assert [transformation["regex"] for transformation in renamed] == [f"/≤ {bound} B/" for bound in SIZE_BOUNDS]
        names = [transformation["renamePattern"].removeprefix("≤ ").split() for transformation in renamed]
        assert [int(number) * units[unit] for number, unit in names] == list(SIZE_BOUNDS)


def test_links_lead_to_a_dashboard() -> None:
    """Every panel link leads to a shipped dashboard with its variables, or to an alert's runbook."""
    urls = {url for dashboard in DASHBOARDS.values() for url in values_of("url", dashboard)}
    time = r"\$\{__url_time_range\}"
    row = r"\$\{__data\.fields\."
    sources = rf"\$\{{datasource:queryparam\}}&(?:\$\{{cluster:queryparam\}}|var-cluster={row}cluster\}})"
    its_job = rf"(?:\$\{{job_id:queryparam\}}|var-job_id={row}job_id\}})"
    kinds = {
        "job or node": rf"/d/rankwatch-(job|node)\?{sources}&{time}&var-(job_id|node)={row}\2\}}",
        "rank": rf"/d/rankwatch-rank\?{sources}&{its_job}&{time}&var-rank=\$\{{.+\}}",
        "runbook": rf"{re.escape(SITE['runbooks'])}#{row}alertname\}}",
    }
    counts = {kind: len([url for url in urls if re.fullmatch(pattern, url)]) for kind, pattern in kinds.items()}
    # Links to ranks: from a curve's labels, from a row of a table or grid, and from a row that names the job. Links to
    # jobs and nodes: from rows with and without a cluster.
    assert counts == {"job or node": 4, "rank": 3, "runbook": 1}
    assert sum(counts.values()) == len(urls)


def test_names_are_links() -> None:
    """Cells with a node, job or alert link to the node, the job or the alert's runbook; rows name their own cluster."""
    for panel in PANELS:
        if panel["type"] != "table":
            continue
        [shown] = [
            transformation["options"]["indexByName"]
            for transformation in panel["transformations"]
            if transformation["id"] == "organize"
        ]
        linked = {
            override["matcher"]["options"]
            for override in panel["fieldConfig"]["overrides"]
            if any(one["id"] == "links" for one in override["properties"])
        }
        assert {"alertname", "job_id", "node"} & shown.keys() <= linked
        boards = [url for url in values_of("url", panel) if url.startswith("/d/")]
        assert all(("var-cluster=" in url) == ("cluster" in shown) for url in boards)


def test_a_sites_own(tmp_path: Path) -> None:
    """From a site's file, dashboards take only `late_share` and the runbooks' address."""
    mine = tmp_path / "my.yml"
    mine.write_text("late_share: 0.5\nrunbooks: https://wiki.site/runbooks\n")
    build.main(tmp_path / "made", mine)
    fleet = (tmp_path / "made" / "fleet.json").read_text()
    assert "https://wiki.site/runbooks#${__data.fields.alertname}" in fleet
    assert (
        fleet.replace("https://wiki.site/runbooks", SITE["runbooks"]) == (GRAFANA / "dashboards/fleet.json").read_text()
    )
    assert '"value": 0.5' in (tmp_path / "made" / "job.json").read_text()


def test_archive(tmp_path: Path) -> None:
    """Each dashboard in the archive names its data source as an input, in grafana.com's format."""
    build.main(tmp_path, archive=tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        boards = {Path(name).stem: json.loads(archive.read(name)) for name in archive.namelist()}
    assert boards.keys() == {f"rankwatch-{name}" for name in DASHBOARDS}
    for name, board in boards.items():
        [source] = board.pop("__inputs")
        assert (source["name"], source["pluginId"]) == ("DS_PROMETHEUS", "prometheus")
        assert {requirement["id"] for requirement in board.pop("__requires")} == {"grafana", "prometheus"}
        shipped = copy.deepcopy(DASHBOARDS[name.removeprefix("rankwatch-")])
        shipped["templating"]["list"][0]["current"] = {"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"}
        assert board == shipped


def test_questions_of_the_docs_have_their_panels() -> None:
    """Every panel that docs/dashboards.md names is on that dashboard."""
    text = (ROOT / "docs" / "dashboards.md").read_text()
    answers = re.findall(r"^\| [^|]+\? \| (\w+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert {dashboard.lower() for dashboard, _ in answers} == set(DASHBOARDS)
    for dashboard, title in answers:
        assert title in {panel["title"] for panel in all_panels(dashboard.lower())}


def test_provisioning() -> None:
    """The examples of provisioning have one data source and one provider of dashboards."""
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["access"]) == ("prometheus", "proxy")
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/scrape/static.yml").read_text())["scrape_configs"]
    longest = max(int(job["scrape_interval"].removesuffix("s")) for job in scrape)
    assert source["jsonData"]["timeInterval"] == f"{longest}s"
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/rankwatch.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert "uid" not in source
