"""Files that a site copies: a complete prometheus.yml, the try-out of alerts, and links of alerts to dashboards."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from programs import load_program
from test_rules import DEPLOY, ROOT, SOURCES, THRESHOLDS, build, rules_of

ALERTMANAGER = ROOT / "deploy" / "alertmanager"
DASHBOARD_LINK = re.compile(r"/d/([\w-]+)\?(.*)", re.DOTALL)


def load(path: Path) -> Any:
    """Return a YAML file's content."""
    return yaml.safe_load(path.read_text())


def test_the_whole_prometheus_has_the_scrape_jobs() -> None:
    """prometheus.yml has the jobs of file_sd, a job for itself, and the rules' path of docs/prometheus.md."""
    whole, scrape = load(DEPLOY / "prometheus.yml"), load(DEPLOY / "scrape" / "file_sd.yml")
    *agents, itself = whole["scrape_configs"]
    assert agents == scrape["scrape_configs"]
    assert itself["job_name"] == "prometheus"
    [rules] = whole["rule_files"]
    assert str(Path(rules).parent) in (ROOT / "docs/prometheus.md").read_text()


def test_replicas_of_prometheus_send_equal_alerts() -> None:
    """Prometheus drops the replica's label from alerts and keeps the label `cluster`."""
    whole = load(DEPLOY / "prometheus.yml")
    [relabel] = whole["alerting"]["alert_relabel_configs"]
    dropped = {name for name in whole["global"]["external_labels"] if re.fullmatch(relabel["regex"], name)}
    assert (relabel["action"], dropped) == ("labeldrop", {"replica"})
    assert whole["global"]["external_labels"].keys() == {"cluster", "replica"}


def test_every_group_and_inhibition_has_the_cluster() -> None:
    """Every grouping and every inhibition rule has the label `cluster`."""
    for name in ("alertmanager.yml", "try-out.yml"):
        config = load(ALERTMANAGER / name)
        groups = list(values_of("group_by", config["route"]))
        assert groups
        assert all("cluster" in group for group in groups)
        assert all("cluster" in inhibit_rule["equal"] for inhibit_rule in config["inhibit_rules"])


def test_inhibitions_name_alerts_that_there_are() -> None:
    """Each alert that a matcher names exists."""
    known = {
        rule["alert"]
        for text in build.build(SOURCES, THRESHOLDS).values()
        for rule in rules_of(text)
        if "alert" in rule
    }
    config = load(ALERTMANAGER / "alertmanager.yml")
    matchers = [matcher for route in values_of("matchers", config["route"]) for matcher in route]
    for rule in config["inhibit_rules"]:
        matchers += [*rule["source_matchers"], *rule["target_matchers"]]
    named = {
        name
        for matcher in matchers
        if (listed := re.match(r'alertname=~?"(.*)"', matcher))
        for name in listed[1].split("|")
    }
    assert named
    assert {name for name in named if not any(re.fullmatch(name, alert) for alert in known)} == set()


def test_the_try_out_wakes_for_a_young_job_of_eight_ranks() -> None:
    """With the demo's thresholds the demo's job of eight ranks raises a page at once."""
    values = build.read_thresholds(DEPLOY / "thresholds.yml", DEPLOY / "thresholds-try-out.yml")
    assert values["page_ranks"] <= 8
    assert "short" in values["page_lived"].split("|")
    assert build.build(SOURCES, values)


def test_links_of_alerts_set_variables_of_the_dashboards() -> None:
    """An alert's link leads to a shipped dashboard and sets only its variables."""
    boards = [json.loads(path.read_text()) for path in (ROOT / "grafana" / "dashboards").glob("*.json")]
    variables = {board["uid"]: {variable["name"] for variable in board["templating"]["list"]} for board in boards}
    alerts = [rule for text in build.build(SOURCES, THRESHOLDS).values() for rule in rules_of(text) if "alert" in rule]
    for alert in alerts:
        link = DASHBOARD_LINK.search(alert["annotations"]["dashboard_url"])
        assert "cluster" in (named := set(re.findall(r"var-(\w+)=", link[2])))
        assert named <= variables[link[1]], alert["alert"]


@pytest.fixture
def printer() -> ModuleType:
    """Provide print_alerts.py, which is no module of a package."""
    return load_program(ALERTMANAGER / "print_alerts.py")


@pytest.fixture
def server(printer: ModuleType) -> Iterator[int]:
    """Provide the port of a running print_alerts.py."""
    with HTTPServer(("127.0.0.1", 0), printer.Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running.server_port
        running.shutdown()
        thread.join()


def post(port: int, body: str) -> int:
    """Send a body; return the status of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/", body)
        return connection.getresponse().status
    finally:
        connection.close()


def notification(count: int, summary: str = "what", status: str = "firing") -> str:
    """Return a notification of ``count`` alerts."""
    notes = {"summary": summary, "description": "more", "runbook_url": "where"}
    alert = {"status": status, "labels": {"severity": "page", "alertname": "RankDead"}, "annotations": notes}
    return json.dumps({"alerts": [alert] * count})


def test_alerts_are_printed(server: int, printer: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """The script prints severity, name and summary, limited in length and without control characters."""
    assert post(server, notification(1, summary="rank 3\x1b[2J")) == 200
    assert capsys.readouterr().out == "PAGE: RankDead: rank 3 [2J\n    more\n    where\n"
    assert post(server, notification(printer.MAX_ALERTS + 1, status="resolved")) == 200
    assert capsys.readouterr().out == "OVER: RankDead: what\n" * printer.MAX_ALERTS + "and 1 more\n"


@pytest.mark.parametrize("body", ["{", "[]", "{}", '{"alerts": [1]}', '{"alerts": [{}]}'])
def test_what_is_no_notification_is_refused(server: int, body: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Malformed input gets status 400 and is not printed; the next notification is printed."""
    assert post(server, body) == 400
    assert capsys.readouterr().out == ""
    assert post(server, notification(1)) == 200


def test_a_notification_is_bounded(printer: ModuleType, server: int) -> None:
    """The script refuses a notification above the limit, or with an invalid size, without reading the body."""
    assert post(server, notification(1).ljust(printer.MAX_BYTES)) == 200
    connection = http.client.HTTPConnection("127.0.0.1", server, timeout=5)
    for size in (str(printer.MAX_BYTES + 1), "-1", "many"):
        connection.putrequest("POST", "/")
        connection.putheader("Content-Length", size)
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()


def values_of(key: str, node: Any) -> Iterator[Any]:
    """Yield the values of a key at any depth."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from values_of(key, child)
