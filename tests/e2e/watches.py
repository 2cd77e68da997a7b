"""A watch of a cluster: Prometheus and Alertmanager (or two of each) with the shipped files, and an inbox."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alerting import Alertmanager, Inbox, Message, to_inbox
from clusters import Cluster, ClusterJob
from nodes import wait_until
from ports import free_port
from prometheus import Prometheus
from rules import prometheus_config

PROXY = Path(__file__).with_name("lossy_proxy.py")
RECEIVERS = ("page", "ticket", "info")
WHOLE, LOSSY = "whole", "lossy"
LOST_SHARE = 0.01
SEED = 4711
LOST = "lost"
SCRAPED_SECONDS = 30.0
"""Prometheus scrapes new targets only after some seconds."""


class Page(NamedTuple):
    """One notification: its time, its receiver, its firing alerts, and its subject.

    Without alerts it says that all are resolved. ``about``: a job, a domain, a node or an alert's name, after its
    cluster if it has one."""

    time: float
    receiver: str
    alerts: list[Mapping[str, Any]]
    about: str

    @property
    def names(self) -> list[str]:
        return [alert["labels"]["alertname"] for alert in self.alerts]

    @property
    def text(self) -> str:
        """Return the text that a person reads."""
        return "\n".join(f"{a['annotations']['summary']}: {a['annotations']['description']}" for a in self.alerts)

    def says(self, *words: str) -> bool:
        """Check that the text contains all ``words``; raises AssertionError with the text."""
        assert [word for word in words if word not in self.text] == [], self.text
        return True


class Watch:
    """The running servers of a watch; queries go to the first Prometheus."""

    def __init__(
        self,
        name: str,
        prometheuses: Sequence[Prometheus],
        alertmanagers: Sequence[Alertmanager],
        inbox: Inbox,
        lost: Path,
    ) -> None:
        self.name = name
        self.lost = lost
        """The proxy's file of lost scrapes."""
        self.prometheuses = prometheuses
        self.prometheus = prometheuses[0]
        self.alertmanagers = alertmanagers
        self.inbox = inbox

    def wait_until_seen(self, job: ClusterJob) -> None:
        """Wait until each Prometheus has seen all ranks of a job running."""
        up = f'count(rankwatch_rank_up{{job_id="{job.job_id}"}} == 1)'
        for server in self.prometheuses:
            wait_until(
                lambda server=server: (server.value(up) or 0) >= job.ranks,
                SCRAPED_SECONDS,
                f"{job.job_id} in Prometheus",
            )

    def notifications(self, about: str | None = None) -> list[Page]:
        """Return the notifications (about one subject), including resolved notifications."""
        pages = (_page(message) for receiver in RECEIVERS for message in self.inbox.at(f"/{receiver}"))
        return sorted((page for page in pages if about in (None, page.about)), key=lambda page: page.time)

    def pages(self, job_id: str, receiver: str = "page") -> list[Page]:
        """Return the notifications about a job ("": about no job), without the resolved notifications."""
        return [
            page for page in self.notifications() if page.alerts and (page.receiver, _job(page)) == (receiver, job_id)
        ]


@contextlib.contextmanager
def watch(
    name: str, directory: Path, cluster: Cluster, rules: Path, *, replicas: int, ticket_wait: str
) -> Iterator[Watch]:
    """Provide a watch of a cluster; a watch called LOSSY scrapes through a proxy that loses some of the scrapes."""
    home = directory / name
    home.mkdir()
    with Inbox(cluster.monitor) as inbox, contextlib.ExitStack() as stack:
        config = to_inbox(inbox, ticket_wait)
        gossip = [free_port() for _ in range(replicas)]
        alertmanagers = [
            Alertmanager(
                home / f"alertmanager-{number}",
                config,
                cluster.monitor,
                (gossip[number], gossip[1 - number]) if replicas == 2 else None,
            )
            for number in range(replicas)
        ]
        ports = [alertmanager.port for alertmanager in alertmanagers]
        proxy = start_proxy(cluster, home) if name == LOSSY else ""
        prometheuses = [
            stack.enter_context(
                Prometheus(
                    home / f"prometheus-{number}",
                    prometheus_config(cluster.targets_dir, rules, *ports, proxy=proxy, replica=number),
                    node=cluster.monitor,
                )
            )
            for number in range(replicas)
        ]
        yield Watch(name, prometheuses, alertmanagers, inbox, home / LOST)


def start_proxy(cluster: Cluster, home: Path) -> str:
    """Start a proxy that loses one scrape in a hundred, until the monitoring node's end; return its address."""
    port = free_port()
    command = [sys.executable, "-S", PROXY, port, LOST_SHARE, SEED, home / LOST]
    with (home / "proxy.log").open("w") as log:
        cluster.monitor.popen(command, stdout=log, stderr=subprocess.STDOUT)

    def listens() -> bool:
        try:
            cluster.monitor.connect(port).close()
        except OSError:
            return False
        return True

    wait_until(listens, 10.0, "the proxy")
    return f"http://127.0.0.1:{port}"


def _page(message: Message) -> Page:
    firing = [alert for alert in message.body["alerts"] if alert["status"] == "firing"]
    labels = message.body["groupLabels"]
    what = next((labels[name] for name in ("job_id", "domain", "node", "alertname") if labels.get(name)), None)
    about = "/".join(filter(None, (labels.get("cluster"), what or message.body["commonLabels"]["alertname"])))
    return Page(message.time, message.path.removeprefix("/"), firing, about)


def _job(page: Page) -> str:
    return str(page.alerts[0]["labels"].get("job_id", ""))
