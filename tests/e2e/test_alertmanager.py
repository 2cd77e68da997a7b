"""The shipped Alertmanager configuration in a real one: routes, inhibitions and texts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from alerting import SHIPPED, Inbox, Post, alert, posted, why_no_alertmanager
from full import full
from nodes import Node, wait_until, why_no_nodes

WHY_NOT = why_no_alertmanager()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
with_node = pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")

MOST_CHARACTERS = 4096
"""The limit of a whole notification."""


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run amtool."""
    return subprocess.run(["amtool", *arguments], check=False, capture_output=True, text=True, timeout=30)


def test_the_configuration_is_good() -> None:
    """amtool accepts the configuration."""
    done = amtool("check-config", str(SHIPPED))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("labels", "receiver"), [
    ("alertname=RankDead severity=page job_id=7", "page"),
    ("alertname=RankUnhealthy severity=page node=n1", "page"),
    ("alertname=NodeLost severity=page job_id=7 node=n1", "page"),
    ("alertname=StorageHung severity=page path=/data", "page"),
    ("alertname=StragglerRank severity=ticket job_id=7", "ticket"),
    ("alertname=RankwatchDown severity=ticket node=n1", "ticket"),
    ("alertname=HardwareFailed severity=ticket node=n1", "ticket"),
    ("alertname=RankwatchTargetsGone severity=ticket", "ticket"),
    ("alertname=RankDead severity=info job_id=7 rank=3 node=n1 class=left", "info"),
    ("alertname=RankwatchOld severity=ticket node=n1", "ticket"),
    ("alertname=InspectorSilent severity=info node=n1", "info"),
    ("alertname=RankDead severity=shadow job_id=7", "nobody"),
    ("alertname=Watchdog severity=info", "dead-mans-switch"),
    ("alertname=Own severity=critical", "ticket"),
])  # fmt: skip
def test_each_severity_has_its_receiver(labels: str, receiver: str) -> None:
    """Each severity goes to its own receiver, shadow to none, and an unknown severity to a person."""
    done = amtool(
        "config", "routes", "test", f"--config.file={SHIPPED}", f"--verify.receivers={receiver}", *labels.split()
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    """Provide an Alertmanager."""
    with Node("monitor") as node, Inbox(node) as inbox:
        yield Post(tmp_path_factory.mktemp("post"), node, inbox)


@with_node
def test_a_job_is_one_page_whatever_happens_to_it(post: Post) -> None:
    """Two pages of one job are one incident, with texts and links; a page of another job is a second incident."""
    post.send(alert("RankDead", "page", "1"), alert("Own", "page", "1"), alert("JobStalled", "page", "2"))
    one, other = post.first("/pagerduty", "RankDead of 1"), post.first("/pagerduty", "JobStalled of 2")
    assert one.body["event_action"] == "trigger"
    assert one.body["routing_key"] == "key"
    assert one.body["payload"]["severity"] == "critical"
    assert one.body["payload"]["group"] == "c1: job 1"
    assert one.body["payload"]["summary"] == "c1: Own of 1, and 1 more"
    details = one.body["payload"]["custom_details"]
    assert (details["what"], details["also"]) == ("description of Own", "RankDead of 1. ")
    assert one.body["links"] == [
        {"href": "https://grafana/d/rankwatch-job?var-job_id=1", "text": "Dashboard"},
        {"href": "https://runbooks/#own", "text": "Runbook"},
    ]
    assert other.body["dedup_key"] != one.body["dedup_key"]
    assert post.count("/pagerduty", "job 1") == 1


@with_node
def test_two_clusters_with_one_job_id_are_two_incidents(post: Post) -> None:
    """Jobs of one id in two clusters are two incidents, and neither inhibits alerts of the other."""
    post.send(alert("RankDead", "page", "8"), alert("JobStalled", "page", "8") | {"cluster": "c2"})
    post.send(alert("StragglerRank", "ticket", "8") | {"cluster": "c3"})
    one, other = post.first("/pagerduty", "c1: job 8"), post.first("/pagerduty", "c2: job 8")
    assert one.body["dedup_key"] != other.body["dedup_key"]
    assert (one.body["payload"]["summary"], other.body["payload"]["summary"]) == (
        "c1: RankDead of 8",
        "c2: JobStalled of 8",
    )
    assert post.suppressed("8", "c2") == {("JobStalled", "page"): False}
    assert post.suppressed("8", "c3") == {("StragglerRank", "ticket"): False}


@with_node
def test_the_hardware_of_a_node_is_one_page(post: Post) -> None:
    """A node's failed hardware under 38 jobs is one page and one ticket of each kind; another node is separate."""
    under = [alert("RankUnhealthy", "page", node="n1"), alert("OwnHardware", "page", node="n1")]
    worn = [alert("HardwareFailed", "ticket", node=node, check=f"c{n}") for node in ("n1", "n2") for n in range(38)]
    for ranks in range(1, 39):
        post.send(*under, said=f" under {ranks} rank(s)")
    post.send(*worn, alert("RankUnhealthy", "page", node="n3"))
    assert post.first("/pagerduty", "c1: node n3").body["payload"]["summary"] == "c1: RankUnhealthy of n3"
    page = post.first("/pagerduty", "c1: node n1").body["payload"]
    assert page["summary"] == "c1: OwnHardware of n1 under 38 rank(s), and 1 more"
    for node in ("n1", "n2"):
        ticket = post.first("/slack", f"HardwareFailed of {node}").body["attachments"][0]
        assert ticket["title"] == f"c1: HardwareFailed of {node}, and 37 more"
    assert post.count("/pagerduty", "node n1") == 1
    assert post.count("/slack", "HardwareFailed of n1") == 1


@with_node
def test_nodes_that_are_lost_together_are_one_page(post: Post) -> None:
    """Three lost nodes of one domain are one notification; a lost node of another domain is another incident."""
    rack = [
        alert("NodeLost", "page", job, domain="rack-7", node=f"n{n}") for job, n in (("21", 1), ("21", 2), ("22", 3))
    ]
    post.send(*rack, alert("NodeLost", "page", "21", domain="rack-8", node="n9"))
    page = post.first("/pagerduty", "domain rack-7").body["payload"]
    other = post.first("/pagerduty", "domain rack-8").body["payload"]
    assert (page["group"], page["summary"]) == ("c1: domain rack-7", "c1: NodeLost of 21, and 2 more")
    assert other["summary"] == "c1: NodeLost of 21"
    assert post.count("/pagerduty", "rack-7") == 1


@with_node
def test_ranks_that_died_together_are_one_page(post: Post) -> None:
    """Three dead ranks of a job are one notification with each rank; a later death updates the incident."""
    dead = [alert("RankDead", "page", "31", rank=rank, node=f"n{rank}", **{"class": "fail"}) for rank in "0123"]
    for labels in dead[:3]:
        post.send(labels, said=f", rank {labels['rank']}")
    page = post.first("/pagerduty", "RankDead of 31").body
    assert page["payload"]["summary"] == "c1: RankDead of 31, rank 0, and 2 more"
    assert page["payload"]["custom_details"]["also"] == "RankDead of 31, rank 1. RankDead of 31, rank 2. "
    post.send(dead[3], said=", rank 3")
    wait_until(lambda: post.count("/pagerduty", "rank 0, and 3 more"), 45.0, "another message")
    assert post.first("/pagerduty", "rank 0, and 3 more").body["dedup_key"] == page["dedup_key"]


@with_node
def test_the_hardware_of_an_nvlink_domain_is_one_page(post: Post) -> None:
    """A link that all nodes of a rack report is one page, and one ticket of each kind."""
    nodes = [f"r{number}" for number in range(9)]
    rack = {"check": "nvlink_down", "cluster_uuid": "5b1b"}
    for severity, name in (("page", "RankUnhealthy"), ("ticket", "HardwareFailed")):
        post.send(*(alert(name, severity, node=node, **rack) for node in nodes))
    page = post.first("/pagerduty", "NVLink domain 5b1b").body["payload"]
    assert (page["group"], page["summary"]) == ("c1: NVLink domain 5b1b", "c1: RankUnhealthy of r0, and 8 more")
    ticket = post.first("/slack", "HardwareFailed of r0").body["attachments"][0]
    assert ticket["title"] == "c1: HardwareFailed of r0, and 8 more"


@with_node
def test_a_page_without_a_job_is_named_by_its_alert(post: Post) -> None:
    """The incident of a page without a job, such as a hung file system, has the alert's name."""
    post.send(alert("StorageHung", "page", path="/data"), alert("StorageHung", "page", path="/home"))
    page = post.first("/pagerduty", "description of StorageHung").body["payload"]
    assert (page["group"], page["summary"]) == ("c1: StorageHung", "c1: StorageHung of /data, and 1 more")


@with_node
def test_tickets_and_information_say_what_and_where(post: Post) -> None:
    """Slack gets summary, description and links; alerts without a job are grouped by name; info goes to the webhook."""
    down = [alert("RankwatchDown", "ticket", node=node) for node in ("n1", "n2")]
    post.send(*down, alert("StragglerRank", "ticket", "3"), alert("RankDead", "info", "4"))
    ticket = post.first("/slack", "StragglerRank of 3").body["attachments"][0]
    assert ticket["title"] == ticket["fallback"] == "c1: StragglerRank of 3"
    assert ticket["title_link"] == "https://grafana/d/rankwatch-job?var-job_id=3"
    assert ticket["text"] == "description of StragglerRank\nRunbook: https://runbooks/#stragglerrank"
    nodes = post.first("/slack", "RankwatchDown of n1").body["attachments"][0]
    assert nodes["title"] == "c1: RankwatchDown of n1, and 1 more"
    assert post.first("/rankwatch", "RankDead").body["groupLabels"] == {"cluster": "c1", "job_id": "4"}


@with_node
def test_texts_stay_short(post: Post) -> None:
    """The notification of forty long pages or tickets is short and has their number."""
    said = ": " + "word " * 120
    pages = [alert(f"Own{number:02}", "page", "40") for number in range(40)]
    tickets = [alert("RankwatchLate", "ticket", node=f"n{number:02}") for number in range(40)]
    post.send(*pages, *tickets, said=said)
    page = post.first("/pagerduty", "job 40").body
    assert page["payload"]["summary"].endswith("..., and 39 more")
    assert page["payload"]["custom_details"]["also"].endswith("And 31 more.")
    assert len(page["payload"]["summary"]) < 300
    ticket = post.first("/slack", "RankwatchLate of n00").body["attachments"][0]
    assert ticket["title"].endswith("..., and 39 more")
    assert "\nAnd 31 more.\n" in ticket["text"]
    assert len(ticket["title"]) < 300
    assert all(len(json.dumps(notification)) < MOST_CHARACTERS for notification in (page, ticket))


@with_node
def test_a_jobs_name_cannot_mention_members(post: Post) -> None:
    """A job's name that Slack would read as a mention or a link arrives as plain characters."""
    post.send(alert("StragglerRank", "ticket", "<!channel>"), said=" <!here> & <@U1>")
    body = post.first("/slack", "&lt;@U1&gt;").body
    ticket = body["attachments"][0]
    assert ticket["title"] == "c1: StragglerRank of &lt;!channel&gt; &lt;!here&gt; &amp; &lt;@U1&gt;"
    assert ticket["text"].startswith("description of StragglerRank &lt;!here&gt; &amp; &lt;@U1&gt;")
    assert "<" not in json.dumps({name: text for name, text in ticket.items() if name != "title_link"})


@with_node
def test_what_is_no_address_is_no_link(post: Post) -> None:
    """PagerDuty gets only absolute addresses as links, never a path or a job's name."""
    page = posted(alert("RankDead", "page", "bad address"))
    page["annotations"] = {**page["annotations"], "runbook_url": "docs/runbooks.md#rankdead"}
    post.alertmanager.send([page])
    assert "links" not in post.first("/pagerduty", "bad address").body


@with_node
@pytest.mark.parametrize(("cause", "silenced", "heard"), [
    ("JobRestarting", "RankDead JobStalled CommunicatorError", "LibraryVersionSkew NodeLost"),
    ("RankDead", "RankUnresponsive CommunicatorStalled CommunicatorError JobStalled", "Own"),
    ("RankUnresponsive", "CommunicatorStalled JobStalled StragglerRank SlowCommunicator", "RankNeverStarted"),
    ("CommunicatorError", "CommunicatorStalled JobStalled", "LibraryVersionSkew"),
    ("CommunicatorStalled", "JobStalled StragglerRank SlowCommunicator SlowPair RecordsLost", "RankNeverStarted"),
    ("JobStalled", "StragglerRank SlowCommunicator RecordsLost", "RankNeverStarted"),
    ("StragglerRank", "SlowCommunicator SlowTransfers", "SlowPair RecordsLost"),
])  # fmt: skip
def test_the_cause_silences_what_follows_from_it(post: Post, cause: str, silenced: str, heard: str) -> None:
    """A cause inhibits its consequences in the same job, and no alert of another job or cluster."""
    effects, others = silenced.split(), heard.split()
    post.send(*(alert(name, "page", cause) for name in (cause, *effects, *others)))
    post.send(alert(effects[0], "page", f"not {cause}"), alert(effects[0], "page", cause) | {"cluster": "c2"})
    states = {name: suppressed for (name, _), suppressed in post.suppressed(cause).items()}
    assert states == {cause: False, **dict.fromkeys(effects, True), **dict.fromkeys(others, False)}
    assert not any(post.suppressed(f"not {cause}").values())
    assert not any(post.suppressed(cause, "c2").values())


@with_node
def test_nothing_is_silenced_by_what_is_less_severe(post: Post) -> None:
    """A page inhibits the job's tickets and info; shadow, info and lost nodes inhibit no page."""
    post.send(
        alert("RankDead", "page", "5"),
        alert("StragglerRank", "ticket", "5"),
        alert("RankDead", "info", "6"),
        alert("RankDead", "shadow", "6"),
        alert("JobStalled", "page", "6"),
        alert("JobStalled", "info", "7"),
        alert("StragglerRank", "ticket", "7"),
        alert("NodeLost", "page", "9", node="n9"),
        alert("RankDead", "page", "9"),
        alert("RankDead", "info", "9"),
        alert("RankUnhealthy", "page", node="n9"),
        alert("RankwatchBlind", "ticket", node="n9"),
    )
    assert post.suppressed("5") == {("RankDead", "page"): False, ("StragglerRank", "ticket"): True}
    assert post.suppressed("6")[("JobStalled", "page")] is False
    assert not any(post.suppressed("7").values())
    assert post.suppressed("9") == {
        ("NodeLost", "page"): False,
        ("RankDead", "page"): False,
        ("RankDead", "info"): True,
    }
    states = [shown for shown in post.alertmanager.alerts() if shown["labels"]["alertname"] == "RankwatchBlind"]
    assert [state["status"]["inhibitedBy"] for state in states] == [[]]


@with_node
@full
def test_the_dead_mans_switch_is_held_down(post: Post) -> None:
    """The watchdog's message arrives twice a minute."""
    post.send(alert("Watchdog", "info"))
    first, second = wait_until(lambda: post.inbox.at("/alive")[1:] and post.inbox.at("/alive"), 45.0, "another message")
    assert 25.0 < second.time - first.time < 35.0
