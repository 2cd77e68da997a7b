"""From an event to the page, with the shipped scrape jobs, rules, routes and thresholds."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alerting import Alertmanager, Inbox, Message, to_inbox, why_no_alertmanager
from clusters import Cluster, ClusterJob, why_no_cluster
from nodes import wait_until
from prometheus import Prometheus, why_no_prometheus
from rules import build_rules, prometheus_config

WHY_NOT = why_no_cluster() or why_no_prometheus() or why_no_alertmanager()
pytestmark = [pytest.mark.root, pytest.mark.timeout(240), pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")]

YOUNG = {"page_lived": "long|short"}
"""A death may page at once instead of after ten minutes; all other thresholds are as shipped."""
SETTLE_SECONDS = 95.0
"""The longest wait for an alert (a lost node).

The watchdog's first message may take this time, too: if Prometheus does not know its Alertmanager at the first
evaluation, it sends the next message after a minute and a half."""
LATE_SECONDS = 60.0
"""After SETTLE_SECONDS the tests wait at most this much longer for missing pages."""
RECEIVERS = ("page", "ticket", "info")


class Accident(NamedTuple):
    """An event of a job on two nodes; ``options``: options of its launchers. ``about``: the subject, if not its job."""

    nodes: tuple[int, int]
    happen: Callable[[ClusterJob], object]
    options: tuple[str, ...] = ()
    about: str = ""


ACCIDENTS = {
    "killed": Accident((0, 1), lambda job: job.signal_rank(2)),
    "crashed": Accident(
        (0, 1), lambda job: job.signal_rank(1, signal.SIGSEGV), ("--teardown", "torchrun", "--grace", "1")
    ),
    "ended": Accident((0, 1), lambda job: job.parts[0].signal_launcher(signal.SIGUSR1)),
    "lost": Accident((2, 3), lambda job: job.nodes[1].lose_power(), about="NodeLost"),
}
PAGED = ACCIDENTS.keys() - {"ended"}


class Watched:
    """The notifications of the events; a job's id is its event's name."""

    def __init__(self, prometheus: Prometheus, inbox: Inbox, happened_at: Mapping[str, float]) -> None:
        self.prometheus = prometheus
        self.inbox = inbox
        self.happened_at = happened_at

    def messages(self, receiver: str, name: str) -> list[Message]:
        """Return the notifications of an event at a receiver, without the resolved ones."""
        about = ACCIDENTS[name].about or name
        firing = [message for message in self.inbox.at(f"/{receiver}") if message.body["status"] == "firing"]
        return [message for message in firing if about in message.body["commonLabels"].values()]

    def check_page(self, name: str, alert: str, within_seconds: float, *words: str) -> None:
        """Check that exactly one page came in time, with these words, and no other notification."""
        messages = {receiver: self.messages(receiver, name) for receiver in RECEIVERS}
        assert [len(messages[receiver]) for receiver in messages] == [1, 0, 0], (self.fired(name), messages)
        [page] = messages["page"]
        [firing] = page.body["alerts"]
        assert firing["labels"]["alertname"] == alert
        text = f"{firing['annotations']['summary']}: {firing['annotations']['description']}"
        assert [word for word in words if word not in text] == [], text
        assert page.time - self.happened_at[name] < within_seconds

    def fired(self, name: str) -> set[str]:
        """Return all alerts of a job that ever fired."""
        fired: list[dict[str, Any]] = self.prometheus.query(
            f'max_over_time(ALERTS{{job_id="{name}",alertstate="firing"}}[1h])'
        )
        return {series["metric"]["alertname"] for series in fired}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Cause all events once Prometheus knows all jobs, and provide the notifications."""
    directory: Path = tmp_path_factory.mktemp("shipped")
    with Cluster(directory, 4) as cluster, Inbox(cluster.monitor) as inbox, contextlib.ExitStack() as stack:
        alertmanager = Alertmanager(directory / "alertmanager", to_inbox(inbox), cluster.monitor)
        config = prometheus_config(cluster.targets_dir, build_rules(directory, YOUNG), alertmanager.port)
        prometheus = stack.enter_context(Prometheus(directory / "prometheus", config, node=cluster.monitor))
        jobs = {
            name: stack.enter_context(
                ClusterJob(cluster, name, [cluster.nodes[number] for number in accident.nodes], 4, *accident.options)
            )
            for name, accident in ACCIDENTS.items()
        }
        for name in jobs:
            up = f'count(rankwatch_rank_up{{job_id="{name}"}} == 1)'
            wait_until(lambda up=up: prometheus.value(up) == 4, 30.0, f"{name} in Prometheus")
        happened_at = {}
        for name, accident in ACCIDENTS.items():
            happened_at[name] = time.time()
            accident.happen(jobs[name])
        site = Watched(prometheus, inbox, happened_at)
        over = time.time() + SETTLE_SECONDS
        wait_until(lambda: time.time() > over, SETTLE_SECONDS + 1.0, "the longest verdict")
        wait_until(lambda: all(site.messages("page", name) for name in PAGED), LATE_SECONDS, "all pages")
        yield site


def test_a_killed_rank_is_one_page(site: Watched) -> None:
    """SIGKILL for one rank is one page within 45 s with rank, node, signal and cause."""
    words = ("killed", "rank 2", "10.0.0.11", "SIGKILL", "3 ranks still run", "likely an admin")
    site.check_page("killed", "RankDead", 45.0, *words)


def test_a_crash_that_ends_the_job_is_one_page(site: Watched) -> None:
    """SIGSEGV, after which the launchers end the other ranks, is one page within 35 s with the first rank."""
    words = ("crashed", "rank 1 on 10.0.0.10 crashed", "GPU, driver or memory when one rank crashes")
    site.check_page("crashed", "RankDead", 35.0, *words)


def test_an_orderly_end_is_silence(site: Watched) -> None:
    """A job that ends in order raises no alert of any severity."""
    assert site.fired("ended") == set()
    assert [site.messages(receiver, "ended") for receiver in RECEIVERS] == [[], [], []]


def test_a_lost_node_is_one_page(site: Watched) -> None:
    """A node without power is one page with the node and its ranks, and no alert about its agent."""
    site.check_page("lost", "NodeLost", 100.0, "Node 10.0.0.13 is lost, with ranks of job lost", "power")
    assert site.fired("lost") == {"NodeLost"}


def test_the_watchdog_has_a_way_of_its_own(site: Watched) -> None:
    """Only the dead man's switch gets the alert Watchdog."""
    assert site.inbox.at("/dead-mans-switch")
    everybody = [message for receiver in RECEIVERS for message in site.inbox.at(f"/{receiver}")]
    assert [message for message in everybody if "Watchdog" in str(message.body)] == []
