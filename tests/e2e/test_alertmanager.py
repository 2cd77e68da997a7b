"""The shipped Alertmanager configuration in a real one: who is told, what silences what, and what people read."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from alerting import SHIPPED, Alertmanager, Inbox, Message, why_no_alertmanager
from nodes import Node, wait_until, why_no_nodes

WHY_NOT = why_no_alertmanager()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
with_node = pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")

SECRETS = "/etc/prometheus/secrets"
SLOW_GROUPS = "group_wait: 1m"
"""No test waits a minute for a ticket."""


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run(["amtool", *arguments], check=False, capture_output=True, text=True, timeout=30)


def test_the_configuration_is_good() -> None:
    """amtool has nothing to say against it."""
    done = amtool("check-config", str(SHIPPED))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("alertname=RankDead severity=page job_id=7", "page"),
        ("alertname=GpuLost severity=page node=n1", "page"),
        ("alertname=StragglerRank severity=ticket job_id=7", "ticket"),
        ("alertname=RankwatchDown severity=ticket node=n1", "ticket"),
        ("alertname=RankDead severity=info job_id=7", "info"),
        ("alertname=RankDead severity=shadow job_id=7", "nobody"),
        ("alertname=Watchdog severity=info", "dead-mans-switch"),
        ("alertname=Own severity=critical", "ticket"),
    ],
)
def test_each_severity_has_its_receiver(labels: str, receiver: str) -> None:
    """Pages wake, tickets wait, the owner is informed, shadow tells nobody, and a strange severity is not lost."""
    done = amtool(
        "config", "routes", "test", f"--config.file={SHIPPED}", f"--verify.receivers={receiver}", *labels.split()
    )
    assert done.returncode == 0, done.stdout


class Post:
    """An Alertmanager with the shipped receivers, whose services are the inbox."""

    def __init__(self, directory: Path, node: Node, inbox: Inbox) -> None:
        self.inbox = inbox
        self._node = node
        secrets = directory / "secrets"
        secrets.mkdir()
        (secrets / "pagerduty-routing-key").write_text("key")
        (secrets / "slack-url").write_text(f"http://127.0.0.1:{inbox.port}/slack")
        (secrets / "webhook-token").write_text("token")
        text = SHIPPED.read_text()
        for there, here in {
            SECRETS: str(secrets),
            "127.0.0.1:8080": f"127.0.0.1:{inbox.port}",
            SLOW_GROUPS: "group_wait: 1s",
        }.items():
            assert there in text
            text = text.replace(there, here)
        text += f"\nglobal:\n  pagerduty_url: http://127.0.0.1:{inbox.port}/pagerduty\n"
        self.alertmanager = Alertmanager(directory / "alertmanager", text, node)

    def send(self, *alerts: Mapping[str, str]) -> None:
        """Send alerts with these labels, each with a summary and a description that name them."""
        body = [
            {
                "labels": labels,
                "annotations": {
                    "summary": f"{labels['alertname']} of {labels.get('job_id', labels.get('node'))}",
                    "description": f"description of {labels['alertname']}",
                    "runbook_url": f"runbooks#{labels['alertname'].lower()}",
                },
            }
            for labels in alerts
        ]
        address = f"http://127.0.0.1:{self.alertmanager.port}/api/v2/alerts"
        header = "Content-Type: application/json"
        done = self._node.run(["curl", "-sSf", "-H", header, "-d", json.dumps(body), address])
        assert done.returncode == 0, done.stderr

    def first(self, path: str, word: str) -> Message:
        """Wait for the first message on a path that holds ``word``."""

        def found() -> Message | None:
            return next((each for each in self.inbox.at(path) if word in json.dumps(each.body)), None)

        message: Message = wait_until(found, 20.0, f"{word} at {path}")
        return message

    def suppressed(self, job_id: str) -> dict[tuple[str, str], bool]:
        """Wait until all alerts of a job are judged; return which of them (name, severity) are inhibited."""

        def judged() -> dict[tuple[str, str], bool] | None:
            alerts = [each for each in self.alertmanager.alerts() if each["labels"].get("job_id") == job_id]
            if any(each["status"]["state"] == "unprocessed" for each in alerts):
                return None
            return {
                (each["labels"]["alertname"], each["labels"]["severity"]): bool(each["status"]["inhibitedBy"])
                for each in alerts
            }

        states: dict[tuple[str, str], bool] = wait_until(judged, 20.0, "Alertmanager's judgement")
        return states


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    """Provide an Alertmanager."""
    with Node("monitor") as node, Inbox(node) as inbox:
        yield Post(tmp_path_factory.mktemp("post"), node, inbox)


def alert(name: str, severity: str, job_id: str = "", **more: str) -> dict[str, str]:
    """Return the labels of an alert."""
    return {"alertname": name, "severity": severity, **({"job_id": job_id} if job_id else {}), **more}


@with_node
def test_a_job_is_one_page_whatever_befalls_it(post: Post) -> None:
    """Two pages of one job and one of another come as one incident each, with summaries, descriptions and runbooks."""
    post.send(alert("RankDead", "page", "1", rank="3"), alert("GpuLost", "page", "1"), alert("NodeLost", "page", "2"))
    one, other = post.first("/pagerduty", "RankDead of 1"), post.first("/pagerduty", "NodeLost of 2")
    assert one.body["event_action"] == "trigger"
    assert one.body["routing_key"] == "key"
    assert one.body["payload"]["severity"] == "critical"
    assert one.body["payload"]["group"] == "job 1"
    details = one.body["payload"]["custom_details"]
    assert set(re.findall(r"description of (\w+)", details["what"])) == {"RankDead", "GpuLost"}
    assert "runbooks#rankdead" in details["runbook"]
    assert other.body["dedup_key"] != one.body["dedup_key"]
    assert len([each for each in post.inbox.at("/pagerduty") if "job 1" in json.dumps(each.body)]) == 1


@with_node
def test_a_page_without_a_job_is_named_by_its_alert(post: Post) -> None:
    """A file system that hangs is nobody's job: the incident's group is the alert."""
    post.send(alert("StorageHung", "page", path="/data"))
    page = post.first("/pagerduty", "description of StorageHung").body["payload"]
    assert page["group"] == "StorageHung"


@with_node
def test_tickets_and_information_say_what_and_where(post: Post) -> None:
    """Slack gets summary, description and runbook; those without a job are grouped by alert; info has the token."""
    down = [alert("RankwatchDown", "ticket", node=node) for node in ("n1", "n2")]
    post.send(*down, alert("StragglerRank", "ticket", "3"), alert("RankDead", "info", "4"))
    ticket = post.first("/slack", "StragglerRank of 3").body["attachments"][0]
    assert ticket["title"] == "StragglerRank of 3. "
    assert ticket["text"] == "description of StragglerRank runbooks#stragglerrank "
    nodes = post.first("/slack", "RankwatchDown of n1").body["attachments"][0]
    assert nodes["title"] == "RankwatchDown of n1. RankwatchDown of n2. "
    assert post.first("/rankwatch", "RankDead").body["groupLabels"] == {"job_id": "4"}


@with_node
@pytest.mark.parametrize(
    ("cause", "silenced", "heard"),
    [
        ("NodeLost", "RankDead JobFailed JobShrunk RankUnresponsive RankMissing CommunicatorStalled JobStalled", ""),
        (
            "RankDead",
            "JobShrunk RankUnresponsive RankMissing CommunicatorStalled CommunicatorError JobStalled",
            "GpuLost",
        ),
        ("JobFailed", "RankUnhealthy JobShrunk RankMissing CommunicatorAborted JobStalled", "GpuLost"),
        ("RankUnhealthy", "RankUnresponsive CommunicatorStalled JobStalled StragglerRank", "RankMissing"),
        ("JobShrunk", "RankMissing", "RankNeverStarted"),
        (
            "RankUnresponsive",
            "CommunicatorStalled JobStalled StragglerRank SlowCommunicator",
            "RankNeverStarted RankMissing",
        ),
        (
            "RankMissing",
            "CommunicatorStalled CommunicatorError JobStalled StragglerRank",
            "RankNeverStarted RankUnresponsive",
        ),
        ("CommunicatorError", "CommunicatorStalled JobStalled", "CommunicatorAborted LibraryVersionSkew"),
        ("CommunicatorAborted", "CommunicatorStalled", "CommunicatorError"),
        ("CommunicatorStalled", "JobStalled StragglerRank SlowCommunicator RecordsLost", "RankNeverStarted"),
        ("JobStalled", "StragglerRank SlowCommunicator RecordsLost", "RankNeverStarted"),
        ("StragglerRank", "SlowCommunicator", "RecordsLost"),
    ],
)
def test_the_cause_silences_what_follows_from_it(post: Post, cause: str, silenced: str, heard: str) -> None:
    """In the same job: its effects are suppressed, all else there is not, nor the effect in another job."""
    effects, others = silenced.split(), heard.split()
    post.send(*(alert(name, "page", cause) for name in (cause, *effects, *others)))
    post.send(alert(effects[0], "page", f"not {cause}"))
    states = {name: suppressed for (name, _), suppressed in post.suppressed(cause).items()}
    assert states == {cause: False, **dict.fromkeys(effects, True), **dict.fromkeys(others, False)}
    assert not any(post.suppressed(f"not {cause}").values())


@with_node
def test_nothing_is_silenced_by_what_is_less_severe(post: Post) -> None:
    """A page silences the job's tickets and information; on trial, info and other jobs' pages silence no page."""
    post.send(
        alert("RankDead", "page", "5"),
        alert("StragglerRank", "ticket", "5"),
        alert("RankDead", "info", "6"),
        alert("NodeLost", "shadow", "6"),
        alert("JobStalled", "page", "6"),
        alert("JobStalled", "info", "7"),
        alert("StragglerRank", "ticket", "7"),
        alert("GpuLost", "page", node="n1"),
        alert("RankwatchLate", "ticket", node="n1"),
    )
    assert post.suppressed("5") == {("RankDead", "page"): False, ("StragglerRank", "ticket"): True}
    assert post.suppressed("6")[("JobStalled", "page")] is False
    assert not any(post.suppressed("7").values())
    states = [each for each in post.alertmanager.alerts() if each["labels"]["alertname"] == "RankwatchLate"]
    assert [each["status"]["inhibitedBy"] for each in states] == [[]]


@with_node
def test_the_dead_mans_switch_is_held_down(post: Post) -> None:
    """The watchdog's message comes twice a minute, neither at once again nor at every other tick of its group."""
    post.send(alert("Watchdog", "info"))
    first, second = wait_until(lambda: post.inbox.at("/alive")[1:] and post.inbox.at("/alive"), 45.0, "another message")
    assert 25.0 < second.time - first.time < 35.0
