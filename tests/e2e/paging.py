"""The way of a page: a cluster, a Prometheus with what we ship for it, an Alertmanager likewise, and an inbox."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from alerting import Alertmanager, Inbox, Message, to_inbox, why_no_alertmanager
from clusters import Cluster, ClusterJob, why_no_cluster
from nodes import wait_until
from prometheus import ROOT, Prometheus, why_no_prometheus

DEPLOY = ROOT / "deploy" / "prometheus"
SCRAPED_SECONDS = 30.0
"""Prometheus asks new targets only after some seconds."""


def why_no_pages() -> str | None:
    """Return why no page can be sent here (the reason of a skipped test), or None."""
    return why_no_cluster() or why_no_prometheus() or why_no_alertmanager()


class Page(NamedTuple):
    """One notification: when it came, at which receiver, and the alerts that fire in it."""

    time: float
    receiver: str
    alerts: list[Mapping[str, Any]]

    @property
    def names(self) -> list[str]:
        """The alerts' names."""
        return [alert["labels"]["alertname"] for alert in self.alerts]

    @property
    def text(self) -> str:
        """What a person reads."""
        return "\n".join(f"{a['annotations']['summary']}: {a['annotations']['description']}" for a in self.alerts)

    def says(self, *words: str) -> bool:
        """Check that all ``words`` are in it; raises AssertionError with what it says instead."""
        assert [word for word in words if word not in self.text] == [], self.text
        return True


class Site:
    """All of it, running."""

    def __init__(self, cluster: Cluster, prometheus: Prometheus, inbox: Inbox) -> None:
        self.cluster = cluster
        self.prometheus = prometheus
        self.inbox = inbox

    def wait_until_seen(self, job: ClusterJob) -> None:
        """Wait until Prometheus has seen all ranks of a job run."""
        up = f'count(rankwatch_rank_up{{job_id="{job.job_id}"}} == 1)'
        wait_until(lambda: self.prometheus.value(up) == job.ranks, SCRAPED_SECONDS, f"{job.ranks} ranks in Prometheus")

    def pages(self, job_id: str, receiver: str = "page") -> list[Page]:
        """Return the notifications of a job (or of none, "") so far, without those that only say that it is over."""
        return [page for page in map(_page, self.inbox.at(f"/{receiver}")) if page and _job(page) == job_id]


@contextlib.contextmanager
def site(
    directory: Path,
    nodes: int,
    thresholds: Mapping[str, Any],
    *,
    ioctl: bool = True,
    shorter: Mapping[str, str] | None = None,
) -> Iterator[Site]:
    """Provide a site of so many nodes, whose rules have these thresholds instead of the shipped ones.

    ``shorter``: texts of the rules, windows that are no thresholds, and what is to stand in their place.
    """
    with Cluster(directory, nodes, exit_status_ioctl=ioctl) as cluster, Inbox(cluster.monitor) as inbox:
        alertmanager = Alertmanager(directory / "alertmanager", to_inbox(inbox), cluster.monitor)
        config = prometheus_config(
            cluster.targets_dir, build_rules(directory, thresholds, shorter or {}), alertmanager.port
        )
        with Prometheus(directory / "prometheus", config, node=cluster.monitor) as prometheus:
            yield Site(cluster, prometheus, inbox)


def build_rules(directory: Path, thresholds: Mapping[str, Any], shorter: Mapping[str, str]) -> Path:
    """Build the rules as a site does, but for the texts in ``shorter``; return their folder."""
    own, output = directory / "thresholds.yml", directory / "rules"
    own.write_text(yaml.safe_dump(dict(thresholds)))
    command = [sys.executable, str(DEPLOY / "build.py"), "--thresholds", str(own), "--output", str(output)]
    subprocess.run(command, check=True)
    built = {path: path.read_text() for path in output.glob("*.yml")}
    for long, short in shorter.items():
        assert any(long in text for text in built.values()), long
        built = {path: text.replace(long, short) for path, text in built.items()}
    for path, text in built.items():
        path.write_text(text)
    return output


def prometheus_config(targets: Path, rules: Path, alertmanager_port: int) -> str:
    """Return a configuration made of the shipped scrape jobs, with targets from the files in ``targets``."""
    shipped = (DEPLOY / "scrape" / "file_sd.yml").read_text()
    assert "/etc/prometheus/rankwatch/" in shipped
    config = {
        "global": {"evaluation_interval": "15s"},
        "rule_files": [f"{rules}/*.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]},
        **yaml.safe_load(shipped.replace("/etc/prometheus/rankwatch/", f"{targets}/")),
    }
    return str(yaml.safe_dump(config))


def _page(message: Message) -> Page | None:
    firing = [alert for alert in message.body["alerts"] if alert["status"] == "firing"]
    return Page(message.time, message.path.removeprefix("/"), firing) if firing else None


def _job(page: Page) -> str:
    return str(page.alerts[0]["labels"].get("job_id", ""))
