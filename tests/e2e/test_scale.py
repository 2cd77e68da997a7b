"""Sites beyond one Prometheus: docs/scale.md's use of VictoriaMetrics, vmagent and vmalert, with a live job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import yaml
from full import full
from machines import Machine, alive
from nodes import wait_until
from ports import free_port
from prometheus import Prometheus, why_no_prometheus
from rules import build_rules, prometheus_config
from victoria import Service, VictoriaMetrics, why_no_victoria

WHY_NOT = why_no_prometheus() or why_no_victoria()
pytestmark = [full, pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(300)]

CLUSTER = "c1"
TOLD_SECONDS = 120.0
SETTLED_SECONDS = 20.0
"""Both servers have all data that is older than this."""
EVALUATION_DELAY_SECONDS = 2
"""vmalert's delay, in which vmagent's samples arrive."""
ROUNDING_SECONDS = 1e-5
"""VictoriaMetrics keeps about 15 digits, so that a time since 1970 loses some microseconds."""
NO_LABELS = ("__name__", "alertgroup", "cluster", "replica")
"""Labels that name the evaluator (Prometheus or vmalert)."""
FIRING = 'ALERTS{{alertstate="firing",alertname="RankDead",job_id="{}"}}'

Labels = tuple[tuple[str, str], ...]


class Servers(NamedTuple):
    """A Prometheus that scrapes and evaluates, the store that it writes to, and a store in which vmalert evaluates."""

    scraping: Prometheus
    store: VictoriaMetrics
    judged_by_vmalert: VictoriaMetrics
    rules: list[dict[str, Any]]
    firing: str
    """The query for the job's alert."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Provide the servers once the Prometheus has an alert for a job's dead rank."""
    directory = tmp_path_factory.mktemp("scale")
    (directory / "targets").mkdir()
    rules = build_rules(directory, {"page_lived": "long|short", "page_ranks": 2})
    config = yaml.safe_load(prometheus_config(directory / "targets", rules, free_port()))
    config["global"]["external_labels"] = {"cluster": CLUSTER}
    machine = Machine(directory)
    with ExitStack() as stack:
        job = stack.enter_context(machine.job("--ranks", "4"))
        agent = stack.enter_context(machine.agent(job))
        agent.wait_for_states(alive(4))
        (directory / "targets" / "n.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        store = stack.enter_context(VictoriaMetrics(directory / "store"))
        written = {"remote_write": [{"url": f"{store.url}/api/v1/write"}]}
        scraping = stack.enter_context(Prometheus(directory / "scraping", yaml.safe_dump(config | written)))
        judged = stack.enter_context(VictoriaMetrics(directory / "judged"))
        own = ("-remoteWrite.flushInterval=100ms",)
        (directory / "vmagent.yml").write_text(
            yaml.safe_dump({key: config[key] for key in ("global", "scrape_configs")})
        )
        flags = (
            f"-promscrape.config={directory / 'vmagent.yml'}",
            "-promscrape.config.strictParse=false",
            f"-remoteWrite.url={judged.url}/api/v1/write",
        )
        stack.enter_context(Service(directory / "vmagent", "vmagent", *flags, *own))
        flags = (
            *(f"-{name}.url={judged.url}" for name in ("datasource", "remoteWrite", "remoteRead")),
            f"-rule={rules}/*.yml",
            f"-rule.evalDelay={EVALUATION_DELAY_SECONDS}s",
            "-notifier.blackhole",
        )
        stack.enter_context(Service(directory / "vmalert", "vmalert", *flags, *own))
        up = f'count(rankwatch_rank_up{{job_id="{machine.job_id}"}} == 1) == 4'
        wait_until(lambda: scraping.query(up) and judged.query(up), TOLD_SECONDS, "the job in both")
        job.kill(job.pid(1))
        firing = FIRING.format(machine.job_id)
        wait_until(lambda: scraping.query(firing), TOLD_SECONDS, "the alert")
        texts = [yaml.safe_load(path.read_text()) for path in rules.glob("*.yml")]
        yield Servers(
            scraping, store, judged, [rule for text in texts for g in text["groups"] for rule in g["rules"]], firing
        )


def values(series: list[dict[str, Any]]) -> dict[Labels, float]:
    """Return the value of each series, keyed by its labels without NO_LABELS."""
    return {
        tuple(sorted(item for item in one["metric"].items() if item[0] not in NO_LABELS)): float(one["value"][1])
        for one in series
    }


def test_a_store_has_the_alert_that_prometheus_writes_to_it(servers: Servers) -> None:
    """VictoriaMetrics gets the alert with the cluster's label."""
    wait_until(lambda: servers.store.query(servers.firing), TOLD_SECONDS, "the alert in the store")
    assert values(servers.store.query(servers.firing)) == values(servers.scraping.query(servers.firing))
    assert {series["metric"]["cluster"] for series in servers.store.query(servers.firing)} == {CLUSTER}


def test_both_engines_evaluate_the_rules_alike(servers: Servers) -> None:
    """Each expression has the same result in VictoriaMetrics and in Prometheus, except rates over windows with gaps."""
    at = round(1000 * (time.time() - SETTLED_SECONDS))
    differ: dict[str, tuple[Any, ...]] = {}
    answered = 0
    for rule in servers.rules:
        if "rate(" in rule["expr"]:  # of a job younger than the window: only Prometheus extrapolates
            continue
        own, other = values(servers.scraping.query(rule["expr"], at)), values(servers.store.query(rule["expr"], at))
        answered += bool(own)
        if own != pytest.approx(other, abs=ROUNDING_SECONDS):
            differ[rule.get("record") or rule["alert"]] = (own, other)
    assert differ == {}
    assert answered > 5


def test_vmalert_judges_alike(servers: Servers) -> None:
    """vmalert fires the same alert with the same labels."""
    wait_until(lambda: servers.judged_by_vmalert.query(servers.firing), TOLD_SECONDS, "the alert by vmalert")
    assert values(servers.judged_by_vmalert.query(servers.firing)) == values(servers.scraping.query(servers.firing))
