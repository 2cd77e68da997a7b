"""Beyond one Prometheus: what we say in docs/scale.md, on a live fleet with VictoriaMetrics and vmagent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from fleets import ABORTED, KILLED, TERMINATED, crashed
from hardware_page import hardware_page
from live_fleet import LiveFleet, LiveJob
from nodes import wait_until
from prometheus import Prometheus, why_no_prometheus
from ras_page import ras_page
from rules import DEPLOY, RULES
from victoria import Service, VictoriaMetrics, why_no_victoria

WHY_NOT = (
    (None if "RANKWATCH_TEST_FULL" in os.environ else "only with RANKWATCH_TEST_FULL=1")
    or why_no_prometheus()
    or why_no_victoria()
)
pytestmark = [
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
    pytest.mark.timeout(400),
]

CLUSTER = "c1"
ACCIDENT_SECONDS = 45.0
AT_ONCE_SECONDS = 0.01
"""So soon that no scrape comes between: one that does makes the failed job a dead rank, at the one server alone."""
SECONDS = 190
"""Long enough for the loss of a node to be told, and for a page to end."""
ARRIVAL_SECONDS = 15.0
"""How much later than others a server may know of the last alerts."""
LATE_EVALUATIONS = 2
"""By how many evaluations of its group one server may begin or end an alert before the other."""
VMALERT_LATE_EVALUATIONS = 5
GAP_SECONDS = 40.0
"""Longer than any group's interval but the slowest two's, which have no alert here."""
ASKED_AT = (40.0, 49.0, 57.0, 78.0, 93.0, 115.0, 128.0, 145.0, 165.0)
"""When expressions are compared: before the accidents, and at all stages of what comes of them."""
ROUNDING_SECONDS = 1e-5
"""VictoriaMetrics keeps 15 digits or so: of a time since 1970, some microseconds are lost."""
PAGES = {
    ("RankDead", "killed"),
    ("RankDead", "crash"),
    ("NodeLost", "lost"),
    ("RankUnhealthy", ""),
    ("StorageHung", ""),
}
EVALUATION_DELAY_SECONDS = 2
"""Of vmalert: what vmagent scraped has arrived by then."""
NO_LABELS = ("__name__", "cluster", "alertgroup")
FIRING = 'ALERTS{alertstate="firing",alertname!="Watchdog"}'

Labels = tuple[tuple[str, str], ...]
Alerts = dict[Labels, list[tuple[float, float]]]
Server = Prometheus | VictoriaMetrics


class Servers(NamedTuple):
    """A Prometheus that scrapes and judges, its store, and two judges of what vmagent scrapes: Prometheus, vmalert."""

    epoch: float
    scraping: Prometheus
    store: VictoriaMetrics
    receiving: Prometheus
    judged_by_vmalert: VictoriaMetrics

    def samples(self, server: Server) -> dict[Labels, list[float]]:
        """Return when each alert fired there until the end of the story, sample by sample (NaN marks its end)."""
        found = server.query(f"{FIRING}[10m]", self.milliseconds(SECONDS))
        return {labels_of(each): [at for at, value in each["values"] if value != "NaN"] for each in found}

    def alerts(self, server: Server) -> Alerts:
        """Return from when to when each alert fired there, each time."""
        found: Alerts = {}
        for labels, times in self.samples(server).items():
            found[labels] = []
            for at in times:
                goes_on = found[labels] and at - found[labels][-1][1] < GAP_SECONDS
                found[labels].append((found[labels].pop()[0] if goes_on else at, at))
        return found

    def milliseconds(self, seconds: float) -> int:
        """Return a time of the fleet since 1970."""
        return round(1000 * (self.epoch + seconds))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Provide the servers after a fleet has lived before them through accidents of all kinds."""
    directory = tmp_path_factory.mktemp("scale")
    (directory / "targets").mkdir()
    fleet = LiveFleet(12, SECONDS)
    accidents(fleet)
    scraped = scrape_config(directory)
    judged = {"rule_files": [str(path) for path in RULES]}
    with ExitStack() as stack:
        stack.enter_context(fleet)
        fleet.write_targets(directory / "targets" / "nodes.json")
        store = stack.enter_context(VictoriaMetrics(directory / "store"))
        writes = {"remote_write": [{"url": f"{store.url}/api/v1/write"}]}
        scraping = stack.enter_context(Prometheus(directory / "scraping", yaml.safe_dump(scraped | judged | writes)))
        receiver = ("--web.enable-remote-write-receiver",)
        unscraped = yaml.safe_dump({"global": scraped["global"]} | judged)
        receiving = stack.enter_context(Prometheus(directory / "receiving", unscraped, more=receiver))
        by_vmalert = stack.enter_context(VictoriaMetrics(directory / "judged_by_vmalert"))
        stack.enter_context(vmalert(directory / "vmalert", by_vmalert))
        (directory / "vmagent.yml").write_text(yaml.safe_dump(scraped))
        flags = (
            f"-promscrape.config={directory / 'vmagent.yml'}",
            "-promscrape.config.strictParse=false",
            f"-remoteWrite.url=http://127.0.0.1:{receiving.port}/api/v1/write",
            f"-remoteWrite.url={by_vmalert.url}/api/v1/write",
            "-remoteWrite.flushInterval=100ms",
        )
        stack.enter_context(Service(directory / "vmagent", "vmagent", *flags))
        wait_until(lambda: fleet.now > SECONDS, SECONDS + 5, "the end of the fleet's story")
        yield Servers(fleet.epoch, scraping, store, receiving, by_vmalert)


def vmalert(home: Path, store: VictoriaMetrics) -> Service:
    """Start vmalert with the rules that we ship, with a delay for what is scraped beside it."""
    flags = ("datasource", "remoteWrite", "remoteRead")
    return Service(
        home,
        "vmalert",
        *(f"-{flag}.url={store.url}" for flag in flags),
        *(f"-rule={path}" for path in RULES),
        "-remoteWrite.flushInterval=100ms",
        f"-rule.evalDelay={EVALUATION_DELAY_SECONDS}s",
        "-notifier.blackhole",
    )


def scrape_config(directory: Path) -> dict[str, Any]:
    """Return the shipped scrape jobs, with targets from a folder there, for a Prometheus of one cluster."""
    shipped = (DEPLOY / "scrape" / "file_sd.yml").read_text()
    assert "/etc/prometheus/rankwatch/" in shipped
    jobs: dict[str, Any] = yaml.safe_load(shipped.replace("/etc/prometheus/rankwatch/", f"{directory}/targets/"))
    return {"global": {"evaluation_interval": "15s", "external_labels": {"cluster": CLUSTER}}, **jobs}


def accidents(fleet: LiveFleet) -> None:
    """Let jobs of two nodes each live through what pages are about, and what they must not be about."""
    nodes, begin = fleet.nodes, ACCIDENT_SECONDS
    killed, crash, cancelled, lost, _, broken = (
        LiveJob(fleet, name, (nodes[2 * number], nodes[2 * number + 1]))
        for number, name in enumerate(("killed", "crash", "cancelled", "lost", "quiet", "broken"))
    )
    fleet.rest = {
        broken.nodes[0].name: hardware_page(broken.job_id, "0"),
        broken.nodes[1].name: ras_page(broken.job_id),
    }
    killed.end(begin, 1, KILLED)
    fleet.cut_off(killed.nodes[1], begin + 45, begin + 50)
    for rank in (0, 2, 3):
        killed.end(begin + 80, rank, TERMINATED)
        crash.end(begin + AT_ONCE_SECONDS, rank, ABORTED)
    killed.start_anew(begin + 85)
    crash.end(begin, 1, crashed())
    for rank in (0, 1, 3):
        cancelled.end(begin + 0.3 * rank, rank, TERMINATED)
    cancelled.end(begin + 30, 2, KILLED)
    lost.stand_still(begin)
    fleet.cut_off(lost.nodes[1], begin, SECONDS + 60)


def labels_of(series: dict[str, Any]) -> Labels:
    """Return a series' labels but for its name, the external label, and the one that vmalert adds."""
    return tuple(sorted(each for each in series["metric"].items() if each[0] not in NO_LABELS))


def test_the_accidents_are_told(servers: Servers) -> None:
    """The Prometheus by which the others are measured pages for what happened, once each, and not for a cancel."""
    alerts = servers.alerts(servers.scraping)
    pages = [dict(labels) for labels in alerts if dict(labels)["severity"] == "page"]
    assert {(page["alertname"], page.get("job_id", "")) for page in pages} == PAGES
    assert {len(fired) for fired in alerts.values()} == {1}


def test_a_store_has_the_alerts_that_prometheus_writes_to_it(servers: Servers) -> None:
    """Every sample of every alert comes to VictoriaMetrics, with the cluster's label."""
    own = servers.samples(servers.scraping)
    wait_until(lambda: servers.samples(servers.store) == own, ARRIVAL_SECONDS, "the alerts in the store")
    assert {each["metric"]["cluster"] for each in servers.store.query(FIRING)} == {CLUSTER}


def test_both_engines_evaluate_the_rules_alike(servers: Servers) -> None:
    """At no stage has an expression another result in VictoriaMetrics than in Prometheus."""
    differ: dict[str, tuple[Any, ...]] = {}
    answered: set[str] = set()
    for at in ASKED_AT:
        for name, rule, _ in rules():
            asked = (rule["expr"], servers.milliseconds(at))
            own, other = values(servers.scraping.query(*asked)), values(servers.store.query(*asked))
            answered |= {name} if own else set()
            if own != pytest.approx(other, abs=ROUNDING_SECONDS):
                differ[name] = (at, own, other)
    assert differ == {}
    assert {alert for alert, _ in PAGES} <= answered


def test_vmalert_judges_alike(servers: Servers) -> None:
    """vmalert fires the same alerts with the same labels, up to five evaluations later."""
    assert_alike(servers, servers.judged_by_vmalert, VMALERT_LATE_EVALUATIONS)


def rules() -> list[tuple[str, dict[str, Any], float]]:
    """Return each rule's name, the rule, and its group's interval in seconds."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [
        (rule.get("record") or rule["alert"], rule, seconds(group["interval"]))
        for group in groups
        for rule in group["rules"]
    ]


def seconds(interval: str) -> float:
    """Return how long an interval of the rules is."""
    return float(interval[:-1]) * {"s": 1, "m": 60}[interval[-1]]


def values(series: list[dict[str, Any]]) -> dict[Labels, float]:
    """Return the value of each series of an answer."""
    return {labels_of(each): float(each["value"][1]) for each in series}


def test_a_prometheus_that_vmagent_writes_to_judges_alike(servers: Servers) -> None:
    """Who scrapes makes no difference: the same alerts with the same labels, begun and ended within two evaluations."""
    assert_alike(servers, servers.receiving, LATE_EVALUATIONS)


def assert_alike(servers: Servers, server: Server, late_evaluations: int) -> None:
    """Compare what a server fired with the scraping one: the same labels, as often, begun and ended near each other.

    Of alerts that began just before the end of the story the server may have none.
    """
    intervals = {name: interval for name, _, interval in sorted(rules(), key=lambda each: -each[2])}  # its shortest
    expected, alerts = servers.alerts(servers.scraping), servers.alerts(server)
    assert alerts.keys() <= expected.keys()
    for labels, fired in expected.items():
        late = late_evaluations * intervals[dict(labels)["alertname"]] + 1
        if labels in alerts or fired[0][0] < servers.epoch + SECONDS - late:
            assert [*sum(alerts[labels], ())] == pytest.approx([*sum(fired, ())], abs=late), labels
