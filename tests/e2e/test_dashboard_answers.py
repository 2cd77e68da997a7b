"""What the dashboards answer on a site with accidents: ranks killed and crashed, nodes lost and broken, a slow link."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import Browser
from client_metrics import encode
from drawn import bundle, draw, unfolded, why_no_drawing
from fixed_page import FixedPage
from fleets import ABORTED, KILLED, crashed
from hardware_page import hardware_page
from live_fleet import LiveFleet, LiveJob
from nodes import wait_until
from prometheus import ROOT, Prometheus, why_no_prometheus
from rules import DEPLOY, RULES

from agent.sdk.metrics import Family, Metric
from exporters.inspector.families import P2P_OPERATIONS, P2P_SECONDS, SLOW_PAIRS

WHY_NOT = (None if "RANKWATCH_TEST_FULL" in os.environ else "only with RANKWATCH_TEST_FULL=1") or why_no_prometheus()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""), pytest.mark.timeout(400)]

ACCIDENT_SECONDS = 40.0
SECONDS = 150
"""Long enough for a lost node to be told from one that is late."""
RANGE = "10m"
DRAWN_SECONDS, DRAWN_STEP_SECONDS = 180, 5
DASHBOARDS = ROOT / "grafana" / "dashboards"
HEALTHY = "healthy"
SLOW_JOB = "slow"
SLOW_PAIR = ("3", "4")
"""Sender and receiver in SLOW_RING; pairs at the same places of the other rings have twice their bandwidth and more."""
RINGS, RING, SLOW_RING = 5, 8, 2
SIZE = "8388608"
FAST, SLOW = 40e9, 15e9


def panels_of(dashboard: str) -> list[dict[str, Any]]:
    """Return the rows and panels of a dashboard."""
    return unfolded(json.loads((DASHBOARDS / f"{dashboard}.json").read_text()))


def filled(text: str, variables: dict[str, str]) -> str:
    """Return a query with values for its variables."""
    known = {"$__rate_interval": "20s", "$__range": RANGE, "$cluster": ".*", "$__interval": "5s"}
    for name, value in (known | {f"${name}": value for name, value in variables.items()}).items():
        text = text.replace(name, value)
    return text


class Site:
    """The fleet after its accidents, its Prometheus, and a way to ask panels."""

    def __init__(self, server: Prometheus, names: dict[str, str]) -> None:
        self._server = server
        self.names = names

    def ask(self, dashboard: str, title: str, ref: str = "A", **variables: str) -> list[dict[str, Any]]:
        """Return the series that a panel's query has now, labels and value."""
        [panel] = [each for each in panels_of(dashboard) if each.get("title") == title and "targets" in each]
        [text] = [each["expr"] for each in panel["targets"] if each["refId"] == ref]
        series = self._server.query(filled(text, variables))
        return [each["metric"] | {"value": float(each["value"][1])} for each in series]

    def results(self, dashboard: str, end: float, **variables: str) -> dict[str, list[Any]]:
        """Return what all its queries have by "panel id:refId", over DRAWN_SECONDS up to ``end`` (since the epoch)."""
        found = {}
        for panel in panels_of(dashboard):
            for target in panel.get("targets", ()):
                text = filled(target["expr"], variables)
                if target.get("instant"):
                    series = self._server.query(text, round(1000 * end))
                else:
                    series = self._server.query_range(text, DRAWN_SECONDS, DRAWN_STEP_SECONDS, end)
                found[f"{panel['id']}:{target['refId']}"] = series
        return found

    def labels(self, dashboard: str, title: str, label: str, ref: str = "A", **variables: str) -> dict[str, float]:
        """Return the values of a panel's query by a label."""
        return {each.get(label, ""): each["value"] for each in self.ask(dashboard, title, ref, **variables)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Provide a site after accidents of all kinds, each to a job of its own."""
    directory = tmp_path_factory.mktemp("answers")
    fleet = LiveFleet(14, SECONDS)
    names = accidents(fleet)
    with ExitStack() as stack:
        slow = stack.enter_context(FixedPage(slow_pair_page))
        stack.enter_context(fleet)
        server = stack.enter_context(Prometheus(directory / "prometheus", shipped(directory, fleet, slow.port)))
        wait_until(lambda: fleet.now > SECONDS, SECONDS + 5, "the end of the fleet's story")
        yield Site(server, names)


def accidents(fleet: LiveFleet) -> dict[str, str]:
    """Let jobs of two nodes live through their accidents; return what nodes are called."""
    nodes, begin = fleet.nodes, ACCIDENT_SECONDS
    kinds = ("killed", "crash", "again", "lost", "broken", HEALTHY)
    killed, crash, again, lost, broken, _ = (
        LiveJob(fleet, name, (nodes[2 * number], nodes[2 * number + 1])) for number, name in enumerate(kinds)
    )
    # A second job on the node of the crash: both of them begin to die there.
    second = LiveJob(fleet, "second", (crash.nodes[0], nodes[12]))
    fleet.rest = {broken.nodes[0].name: hardware_page(broken.job_id, "0")}
    killed.end(begin, 1, KILLED)
    crash.end(begin, 1, crashed())
    for rank in (0, 2, 3):
        crash.end(begin + 0.5, rank, ABORTED)
    second.end(begin + 20, 0, crashed())
    for rank in (1, 2, 3):
        second.end(begin + 20.5, rank, ABORTED)
    again.end(begin, 3, KILLED)
    lost.stand_still(begin)
    fleet.cut_off(lost.nodes[1], begin, SECONDS + 60)
    return {
        "killed": killed.nodes[0].name,
        "lemon": crash.nodes[0].name,
        "lost": lost.nodes[1].name,
        "broken": broken.nodes[0].name,
    }


def slow_pair_page() -> bytes:
    """Return a page on five rings of eight ranks on one node, in one of which a pair sends slowly, half of the time."""
    return encode(_pairs(time.time() % 1e6)).body


def _pairs(seconds: float) -> Iterator[Metric]:
    pairs = [(str(rank), str((rank + 1) % RING)) for rank in range(RING)]
    rows = SLOW_PAIRS.rows()
    for ring, (sender, receiver), direction in itertools.product(range(RINGS), pairs, ("send", "recv")):
        labels = {"job_id": SLOW_JOB, "comm": f"ring{ring}", "sender": sender, "receiver": receiver, "size": SIZE}
        labels |= {"rank": _rank(ring, sender if direction == "send" else receiver), "direction": direction}
        is_slow = (ring, sender, receiver) == (SLOW_RING, *SLOW_PAIR)
        rows.add(_in_order(SLOW_PAIRS, labels), SLOW if is_slow else FAST)
    yield rows.metric
    for family, value in ((P2P_OPERATIONS, 1000 * seconds), (P2P_SECONDS, 0.5 * seconds)):
        rows = family.rows()
        for ring, place in itertools.product(range(RINGS), range(RING)):
            labels = {"job_id": SLOW_JOB, "comm": f"ring{ring}", "rank": _rank(ring, str(place))}
            rows.add(_in_order(family, labels | {"direction": "send", "size": SIZE}), value)
        yield rows.metric


def _rank(ring: int, place: str) -> str:
    return str(RING * ring + int(place))


def _in_order(family: Family, labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in family.labels)


def shipped(directory: Path, fleet: LiveFleet, slow_port: int) -> str:
    """Return the shipped scrape jobs over the fleet and the page, with the shipped rules, evaluated every 5 s."""
    (directory / "targets").mkdir()
    text = (DEPLOY / "scrape" / "file_sd.yml").read_text()
    jobs: dict[str, Any] = yaml.safe_load(text.replace("/etc/prometheus/rankwatch/", f"{directory}/targets/"))
    rules = directory / "rules"
    rules.mkdir()
    for path in RULES:
        groups = yaml.safe_load(path.read_text())
        for group in groups["groups"]:
            group["interval"] = "5s"
        (rules / path.name).write_text(yaml.safe_dump(groups))
    targets = directory / "targets" / "nodes.json"
    wait = fleet.targets
    targets.write_text(json.dumps([{"targets": [*wait, f"127.0.0.1:{slow_port}"]}]))
    return yaml.safe_dump({"global": {"evaluation_interval": "5s"}, "rule_files": [f"{rules}/*.yml"], **jobs})


def test_fleet_says_where_to_look(site: Site) -> None:
    """Fleet lists the jobs in trouble and no healthy one, the nodes that are not well, and those blamed again."""
    trouble = {each["job_id"]: (each["trouble"], each["value"]) for each in site.ask("fleet", "Jobs in trouble")}
    expected = {"killed": ("dead ranks", 1), "again": ("dead ranks", 1), "lost": ("lost nodes", 1)}
    expected |= {"broken": ("ranks on failed hardware", 1)}
    assert expected.items() <= trouble.items()
    assert HEALTHY not in trouble
    states = site.labels("fleet", "Nodes by health", "node")
    assert states[site.names["broken"]] == 0
    assert states[site.names["lost"]] == -1
    died = site.labels("fleet", "Nodes that fail again and again", "node")
    assert max(died, key=lambda node: died[node]) == site.names["lemon"]
    assert died[site.names["lemon"]] == 2
    pages = {each["alertname"] for each in site.ask("fleet", "Alerts that fire") if each["severity"] == "page"}
    assert "NodeLost" in pages


@pytest.mark.parametrize(
    ("job", "node", "rank", "how"),
    [("killed", "killed", "1", "killed (SIGKILL)"), ("crash", "lemon", "1", "crashed (SIGSEGV)")],
)
def test_job_says_who_went_first(site: Site, job: str, node: str, rank: str, how: str) -> None:
    """The sentence on top of Job names the rank that ended first, its node and how."""
    [first] = site.ask("job", "What is known", "A", job_id=job)
    assert (first["rank"], first["node"], first["how"]) == (rank, site.names[node], how)
    assert site.ask("job", "What is known", "H", job_id=job) == []
    left = site.labels("job", "Ranks that left", "rank", job_id=job)
    assert rank in left


def test_job_says_which_node_is_lost(site: Site) -> None:
    """The sentence on top of Job names the lost node, and says how many ranks wait."""
    assert site.labels("job", "What is known", "node", "B", job_id="lost").keys() == {site.names["lost"]}
    assert site.labels("job", "What is known", "", "C", job_id="lost") == {"": 2}


def test_job_says_whose_hardware_failed(site: Site) -> None:
    """The sentence on top of Job names the rank on broken hardware, and does not say that all is well."""
    found = site.ask("job", "What is known", "J", job_id="broken")
    assert {(each["rank"], each["node"]) for each in found} == {("0", site.names["broken"])}
    for job in ("broken", "lost"):
        assert site.ask("job", "What is known", "H", job_id=job) == []


def test_a_healthy_job_is_told_so(site: Site) -> None:
    """The sentence on top of Job says that nothing is known against a healthy job, and nothing else."""
    refs = "ABCDEFGHIJ"
    answers = {ref: site.ask("job", "What is known", ref, job_id=HEALTHY) for ref in refs}
    assert [ref for ref in refs if answers[ref]] == ["H"]
    assert [each["value"] for each in answers["H"]] == [4]


def test_rank_still_shows_the_dead(site: Site) -> None:
    """Rank shows where a dead rank ran, its pid and how it ended; its age stands still."""
    rank = {"job_id": "killed", "rank": "1"}
    [where] = site.ask("rank", "Where it runs", **rank)
    assert (where["node"], bool(where["pid"])) == (site.names["killed"], True)
    [ended] = site.ask("rank", "How it ended", **rank)
    assert ended["signal"] == "SIGKILL"
    ages = [site.ask("rank", "Age", **rank)[0]["value"] for _ in range(2)]
    assert ages[0] == ages[1]


def test_node_says_what_is_wrong(site: Site) -> None:
    """Node names the failed checks, and the jobs that died there first."""
    assert site.labels("node", "Failed checks", "check", node=site.names["broken"])
    blamed = site.labels("node", "Jobs that died here first", "job_id", node=site.names["lemon"])
    assert blamed.keys() == {"crash", "second"}


def test_fabric_names_the_slow_link(site: Site) -> None:
    """Fabric and Job name the slow pair of ranks and no other."""
    found = site.ask("fabric", "Slow pairs of ranks")
    assert {(each["rank"], each["peer"]) for each in found} == {tuple(_rank(SLOW_RING, each) for each in SLOW_PAIR)}


def test_agent_names_the_silent(site: Site) -> None:
    """Agent names the node whose agent cannot be scraped."""
    assert site.labels("agent", "Silent agents", "node").keys() == {site.names["lost"]}


@pytest.mark.skipif(why_no_drawing() is not None, reason=why_no_drawing() or "")
def test_all_are_drawn(site: Site, tmp_path: Path) -> None:
    """After the accidents Grafana's own components draw each dashboard, no panel with an error; RANKWATCH_PICTURES."""
    chosen = {"job": {"job_id": "killed"}, "rank": {"job_id": "killed", "rank": "1"}}
    chosen |= {"node": {"node": site.names["broken"]}}
    pictures, end = os.environ.get("RANKWATCH_PICTURES"), time.time()
    program = bundle(tmp_path)
    for path in sorted(DASHBOARDS.glob("*.json")):
        results = site.results(path.stem, end, **chosen.get(path.stem, {}))
        span = (end - DRAWN_SECONDS, end, DRAWN_STEP_SECONDS)
        home = tmp_path / path.stem
        home.mkdir()
        with Browser(home) as browser:
            picture = Path(pictures) / f"{path.stem}.png" if pictures else None
            dashboard = json.loads(path.read_text())
            found = draw(browser, program, dashboard, results, span, light=False, picture=picture)
        assert set(found.values()) <= {"drawn", "empty"}, path.stem
